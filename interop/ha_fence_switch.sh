#!/bin/bash
# Fence agent of the guests: the power switch is the harness, which looks for off.NODE in the
# folder of the guest, and answers with is-off.NODE. An action that is not said is none.
action= port=
case $* in *metadata*) action=metadata;; esac
while [ -z "$action$end" ]; do
  IFS='=' read -r key value || end=1
  case $key in action) wanted=$value;; port|plug) port=$value;; nodename) port=${port:-$value};; esac
done
case ${action:-$wanted} in
metadata) cat <<'M'
<?xml version="1.0" ?>
<resource-agent name="fence_switch" shortdesc="power switch of the guests">
<longdesc>Turns guests off.</longdesc>
<parameters>
<parameter name="action" unique="0" required="1"><getopt mixed="-o"/><content type="string" default="off"/><shortdesc lang="en">action</shortdesc></parameter>
<parameter name="port" unique="0" required="0"><getopt mixed="-n"/><content type="string"/><shortdesc lang="en">node</shortdesc></parameter>
</parameters>
<actions><action name="on" automatic="0"/><action name="off"/><action name="reboot"/><action name="status"/><action name="list"/><action name="monitor"/><action name="metadata"/></actions>
</resource-agent>
M
;;
list) printf 'a\nb\n';;
monitor|on) ;;
status) [ ! -e "/job/is-off.$port" ] || exit 2;;
off|reboot)
  : > "/job/off.$port"
  for _ in $(seq 1000); do [ ! -e "/job/is-off.$port" ] || exit 0; sleep 0.1; done
  exit 1;;
*) exit 1;;
esac
