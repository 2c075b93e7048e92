#!/usr/bin/env bash
# A Kerberos realm for the cluster in DIR: TEST.LOCAL, with a Key Distribution Center on 127.0.0.1. Needs the packages krb5-kdc,
# krb5-admin-server and krb5-user. Nothing of the machine is changed: DIR/kdc has the configuration, the database and all keys.
#   realm.sh create DIR PORT   makes the realm, a keytab of the daemons (service.keytab), and one of each of alice and bob
#   realm.sh serve DIR         becomes its server, in the foreground; DIR/kdc/kdc.pid has its process id
set -eu
[ $# -ge 2 ] || { sed -n '2,5p' "$0" >&2; exit 2; }
kdc=$2/kdc realm=TEST.LOCAL
# The servers' programs are not on the path of ordinary users.
export KRB5_CONFIG=$kdc/krb5.conf KRB5_KDC_PROFILE=$kdc/kdc.conf PATH=$PATH:/usr/sbin:/sbin

if [ "$1" = serve ]; then
  # stop.sh finds the processes of a cluster by this word on their command line.
  exec -a "krb5kdc -Dheddle.dir=$2/" krb5kdc -n -P "$kdc/kdc.pid"
fi
mkdir -p "$kdc/db"
# Without DNS, and over TCP: the machine may have neither a resolver nor other addresses.
cat > "$KRB5_CONFIG" <<X
[libdefaults]
 default_realm = $realm
 dns_lookup_kdc = false
 dns_lookup_realm = false
 dns_canonicalize_hostname = false
 rdns = false
 udp_preference_limit = 1
[realms]
 $realm = {
  kdc = 127.0.0.1:$3
 }
X
cat > "$KRB5_KDC_PROFILE" <<X
[kdcdefaults]
 kdc_listen = 127.0.0.1:$3
 kdc_tcp_listen = 127.0.0.1:$3
[realms]
 $realm = {
  database_name = $kdc/db/principal
  key_stash_file = $kdc/db/stash
  acl_file = $kdc/db/acl
  supported_enctypes = aes256-cts-hmac-sha1-96:normal
 }
[logging]
 kdc = FILE:$kdc/requests.log
X
kdb5_util create -s -P only-for-tests -r "$realm"
for name in nn dn rm nm HTTP; do
  printf 'addprinc -randkey %s\nktadd -k %s %s\n' "$name/localhost" "$kdc/service.keytab" "$name/localhost"
done | kadmin.local
for name in alice bob; do
  printf 'addprinc -randkey %s\nktadd -k %s %s\n' "$name" "$kdc/$name.keytab" "$name"
done | kadmin.local
