#!/usr/bin/env bash
# A real Hadoop on this machine: one NameNode, DataNode and ResourceManager, and NODES NodeManagers (default 2),
# each a process of its own, on a loopback network of their own. Needs a JDK 17 and Maven.
#   start.sh [DIR]     DIR keeps everything, also between runs (default: $TMPDIR/heddle-single-node)
#   stop.sh DIR        ends it
# KERBEROS=1 makes it a secured cluster with a realm of its own, in which alice and bob have keytabs; KDC_PORT=18088 is its server's port.
# Environment: NODES=2, NET=127.77.0 (a /24 for each cluster on a machine), HEDDLE_HADOOP_CACHE (the jars),
# HEDDLE_HADOOP_VERSION=3.5.0. Prints HADOOP_CONF_DIR=… and the web addresses when the cluster is ready.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
dir=${1:-${TMPDIR:-/tmp}/heddle-single-node}
net=${NET:-127.77.0} nodes=${NODES:-2} version=${HEDDLE_HADOOP_VERSION:-3.5.0}
cache=${HEDDLE_HADOOP_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/heddle-hadoop}/$version
pom=$here/../../tests/hadoop/pom.xml
if [ -z "${JAVA_HOME:-}" ] && java=$(command -v java); then java=$(readlink -f "$java"); JAVA_HOME=${java%/bin/java}; fi
export JAVA_HOME=${JAVA_HOME:-}   # NodeManagers pass it on, and Java applications start by it
java=${JAVA_HOME:+$JAVA_HOME/bin/}java

die() { echo "start.sh: $*" >&2; exit 1; }
for tool in "$java" mvn curl; do command -v "$tool" >/dev/null || die "$tool is missing: it needs a JDK 17, Maven and curl"; done
mkdir -p "$dir"; dir=$(cd "$dir" && pwd)
secured=${KERBEROS:+yes}; [ -d "$dir/nn/name" ] && secured=$(! [ -d "$dir/kdc" ] || echo yes)   # a cluster stays what it is
for tool in ${secured:+krb5kdc kdb5_util kadmin.local kinit}; do PATH=$PATH:/usr/sbin:/sbin command -v "$tool" >/dev/null ||
  die "$tool is missing: KERBEROS=1 needs the packages krb5-kdc, krb5-admin-server and krb5-user"; done
ls "$dir"/*/*.pid >/dev/null 2>&1 && die "a cluster runs in $dir, or was not stopped: $here/stop.sh $dir"

# Jars, once for each machine and version. The pom beside them defines the set.
cmp -s "$pom" "$cache/pom.xml" || {
  echo "fetching the jars of Hadoop $version to $cache" >&2
  rm -rf "$cache"; mkdir -p "$cache"
  mvn -q -B -f "$pom" "-Dhadoop.version=$version" dependency:copy-dependencies "-DoutputDirectory=$cache/jars" >&2
  cp "$pom" "$cache/pom.xml"; }
classpath=$(printf '%s:' "$cache"/jars/*.jar)$dir/conf
archive=(); [ -f "$cache/app.jsa" ] && archive=("-XX:SharedArchiveFile=$cache/app.jsa" -Xshare:auto -Xlog:disable -Xlog:all=error:stderr
  -XX:+UnlockDiagnosticVMOptions -XX:ArchiveRelocationMode=0)

# Configuration: these files with the places filled in; a client's directory has only what a client needs.
mkdir -p "$dir/conf/webapps/hdfs" "$dir/conf/webapps/datanode" "$dir/client-conf"
for file in "$here"/conf/*; do
  name=${file##*/} to=$dir/conf/${file##*/}
  case $name in client-*) to=$dir/client-conf/${name#client-};; esac
  sed -e "s|@NET@|$net|g; s|@DIR@|$dir|g; s|@DN@|1|g; s|@REPL@|1|g; s|@USER@|$(id -un)|g; s|@JARS@|$cache/jars|g" "$file" > "$to"
done
# With Kerberos some files have more properties, at their ends. The last flag makes Hadoop's own Kerberos code work on newer Javas.
if [ -n "$secured" ]; then
  for file in "$here"/kerberos/*.xml; do
    name=${file##*/} to=$dir/conf/${file##*/}
    case $name in client-*) to=$dir/client-conf/${name#client-};; esac
    { grep -v '^</configuration>' "$to"; grep '<property>' "$file" | sed "s|@DIR@|$dir|g"; echo '</configuration>'; } > "$to.new"
    mv "$to.new" "$to"
  done
  printf '%s\n' "-Djava.security.krb5.conf=$dir/kdc/krb5.conf" --add-exports=java.security.jgss/sun.security.krb5=ALL-UNNAMED >> "$dir/conf/jvm.options"
  export KRB5_CONFIG=$dir/kdc/krb5.conf
  [ -f "$dir/kdc/service.keytab" ] || "$here/realm.sh" create "$dir" "${KDC_PORT:-18088}" >"$dir/realm.log" 2>&1 || die "no realm: $dir/realm.log"
  setsid "$here/realm.sh" serve "$dir" </dev/null >>"$dir/kdc.log" 2>&1 &
fi
cp "$dir/conf/core-site.xml" "$dir/conf/log4j.properties" "$dir/client-conf/"
# Names without DNS; the first line makes the ResourceManager's links name its address and not "localhost".
printf '%s %s %s\n127.0.0.1 localhost\n' "$net.1" "$net.1" "$(hostname)" > "$dir/hosts"

# daemon NAME HEAP_MB HOST CLASS ARG…: runs it here; the caller decides on & and where output goes.
daemon() {
  local own=$dir/$1 heap=$2 host=$3; mkdir -p "$own/tmp"; shift 3
  cd "$own"; export HADOOP_CONF_DIR=$dir/client-conf; unset HADOOP_USER_NAME
  exec setsid "$java" "-Xmx${heap}m" "@$dir/conf/jvm.options" "${archive[@]}" "-Dheddle.dir=$own" "-Dheddle.host=$host" \
    "-Djava.io.tmpdir=$own/tmp" "-Dhadoop.log.dir=$own" "-Dyarn.log.dir=$own" "-Dhadoop.home.dir=$own" \
    "-Djdk.net.hosts.file=$dir/hosts" "-Dlog4j.configuration=file:$dir/conf/log4j.properties" -cp "$classpath" "$@"; }
start() { ( daemon "$@" ) </dev/null >>"$dir/$1.log" 2>&1 & mkdir -p "$dir/$1"; echo $! > "$dir/$1/$1.pid"; }
fetch() { curl -sf -m 2 "$1"; }
dead() { for f in "$dir"/*/*.pid; do [ ! -e "$f" ] || [ -d "/proc/$(<"$f")" ] || die "$(basename "$f" .pid) died: $dir/$(basename "$f" .pid).log"; done; }
# wait_for SECONDS WHAT COMMAND…: until the command succeeds; a dead daemon ends it.
wait_for() { local end=$((SECONDS + $1)) what=$2; shift 2
  until "$@"; do dead; [ $SECONDS -lt $end ] || die "$what not ready, see $dir/*.log"; sleep 0.1; done; }

[ -z "$secured" ] || wait_for 20 "the KDC" test -s "$dir/kdc/kdc.pid"
hadoop=org.apache.hadoop yarn=org.apache.hadoop.yarn.server
[ -d "$dir/nn/name" ] || ( daemon nn 96 "$net.1" $hadoop.hdfs.server.namenode.NameNode -format -nonInteractive ) >"$dir/format.log" 2>&1 \
  || die "format failed: $dir/format.log"
start nn 96 "$net.1" $hadoop.hdfs.server.namenode.NameNode
start rm1 128 "$net.1" $yarn.resourcemanager.ResourceManager
for i in $(seq "$nodes"); do start "nm$i" 64 "$net.$((10 + i))" $yarn.nodemanager.NodeManager; done

# A DataNode that meets a NameNode which is up but not ready sleeps 5 s; the web port is the sign.
jmx="http://$net.1:9870/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"
wait_for 60 NameNode fetch "$jmx" >/dev/null
start dn1 64 "$net.11" $hadoop.hdfs.server.datanode.DataNode
hdfs_ready() { local j; j=$(fetch "$jmx") && [[ $j == *'"FSState" : "Operational"'* && $j == *'"NumLiveDataNodes" : 1,'* ]]; }
yarn_ready() { local j; j=$(fetch "http://$net.1:8088/ws/v1/cluster/metrics") && [[ $j == *"\"activeNodes\":$nodes"[,}]* ]]; }
wait_for 60 HDFS hdfs_ready; wait_for 60 YARN yarn_ready

# Homes of the users, as an administrator would make them: by WebHDFS, which would need a browser's login with Kerberos.
if [ -n "$secured" ]; then
  export KRB5CCNAME=FILE:$dir/kdc/nn.cc
  kinit -k -t "$dir/kdc/service.keytab" nn/localhost || die "no ticket of the superuser"
  dfs() { ( daemon admin 128 "$net.1" $hadoop.fs.FsShell "$@" ) >>"$dir/homes.log" 2>&1 || die "hdfs dfs $*: $dir/homes.log"; }
  dfs -mkdir -p /tmp /user/alice /user/bob
  dfs -chmod 1777 /tmp; dfs -chmod 700 /user/alice /user/bob
  for user in alice bob; do dfs -chown "$user" "/user/$user"; done
else
  user=${HADOOP_USER_NAME:-$(id -un)} put="http://$net.1:9870/webhdfs/v1" as=user.name=$(id -un)
  for path in /tmp:1777 /user:755 "/user/$user:700"; do
    curl -sf -o /dev/null -X PUT "$put${path%:*}?op=MKDIRS&permission=${path#*:}&$as" || die "mkdir ${path%:*}"; done
  curl -sf -o /dev/null -X PUT "$put/user/$user?op=SETOWNER&owner=$user&$as" || die "chown /user/$user"
fi

echo "HADOOP_CONF_DIR=$dir/client-conf"
echo "NameNode         http://$net.1:9870/"
echo "ResourceManager  http://$net.1:8088/"
echo "stop with        $here/stop.sh $dir"
[ -z "$secured" ] || echo "log in with      export KRB5_CONFIG=$dir/kdc/krb5.conf; kinit -k -t $dir/kdc/alice.keytab alice   (or bob)"
