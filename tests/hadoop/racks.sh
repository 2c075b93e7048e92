#!/bin/sh
# Racks of a test cluster (net.topology.script.file.name): hosts with even and with odd addresses.
for host; do
  case $host in
    *[02468]) echo /rack-0 ;;
    *) echo /rack-1 ;;
  esac
done
