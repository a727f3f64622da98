package main

import (
	"context"
)

// The peers among themselves, without us: when one of these fails, the guest is
// at fault and no other case means anything.
var peerCases = []Case{
	{Name: "peers/rping", Expect: "the kernel's siw talks to itself", Short: true, Run: func(_ context.Context, e *Env) (string, error) {
		_, err := e.In(`siw_up || die siw
limited 60 rping -s -a $SELF -p 7200 -C 10 -V & s=$!
listening 7200 || die the server does not listen; limited 60 rping -c -a $SELF -p 7200 -C 10 -V || die client; wait $s || die server; quiet_kernel`)
		return "10 pings verified", err
	}},
	{Name: "peers/lio-iser", Expect: "open-iscsi attaches LIO over siw", Run: lioAlone("iser")},
	{Name: "peers/lio-tcp", Expect: "open-iscsi attaches LIO over TCP", Run: lioAlone("tcp")},
}

func lioAlone(mode string) func(context.Context, *Env) (string, error) {
	port := map[string]int{"iser": 3270, "tcp": 3271}[mode]
	iqn := lioIQN + "-" + mode
	return func(_ context.Context, e *Env) (string, error) {
		return "all the same, verified", second(e.In(`HOST=$SELF; dmesg -C; siw_up || die siw
lio_ram %[1]s 64; lio_target %[2]s && lio_lun 0 $lio_path && lio_portal $SELF %[3]d %[4]s && echo 1 > $tpg/enable || die lio
d=$(attach %[1]s %[3]d %[2]s) || die attach: $d
sizes $d || die sizes; verify $d 8 2 16 || die fio; detach %[2]s || die detach; quiet_kernel || die kernel`,
			mode, iqn, port, map[string]string{"iser": "iser"}[mode]))
	}
}

// second drops what a guest script printed.
func second(_ string, err error) error { return err }
