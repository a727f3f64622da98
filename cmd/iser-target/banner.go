package main

import (
	"bytes"
	"fmt"
	"io"
	"net"

	"softiser/config"
	"softiser/target"
)

// printBanner tells, in one piece, what is served and how to attach it.
func printBanner(out io.Writer, a *app, portals []config.Portal) {
	w := &bytes.Buffer{}
	st := a.reg.Status()
	at := waysIn{a.srv.Addrs(), portals}
	fmt.Fprintf(w, "iser-target serves on %v (iSER, iSCSI and NVMe on the same port)\n", a.srv.Addrs())
	for _, t := range st.Targets {
		for _, l := range t.LUNs {
			if l.Error != "" {
				fmt.Fprintf(w, "\n  %s  LUN %d is NOT SERVED: %s\n", t.Name, l.LUN, l.Error)
				continue
			}
			fmt.Fprintf(w, "\n  %s  LUN %d  %s %s\n", t.Name, l.LUN, config.Size(l.Size), l.Backend)
			for _, c := range at.lun(t.Name, int(l.LUN)) {
				fmt.Fprintf(w, "    %s\n", c)
			}
		}
		for _, c := range at.iscsiadm(t.Name) {
			fmt.Fprintf(w, "    %s\n", c)
		}
	}
	for _, s := range st.Subsystems {
		for _, n := range s.Namespaces {
			if n.Error != "" {
				fmt.Fprintf(w, "\n  %s  namespace %d is NOT SERVED: %s\n", s.NQN, n.NSID, n.Error)
				continue
			}
			fmt.Fprintf(w, "\n  %s  namespace %d  %s %s\n", s.NQN, n.NSID, config.Size(n.Size), n.Backend)
		}
		for _, c := range at.nvmeConnects(&s) {
			fmt.Fprintf(w, "    %s\n", c)
		}
	}
	fmt.Fprintln(w)
	out.Write(w.Bytes()) //nolint:errcheck // it is a courtesy: the target serves whether or not somebody reads
}

// waysIn are the portals, each with the address that it is bound to, for the commands in the
// banner: a command is told only with a portal that can speak what it speaks.
type waysIn struct {
	addrs   []string
	portals []config.Portal
}

// portal is the first portal that fits, and an address to reach it at; nil: there is none.
func (at waysIn) portal(fits func(*config.Portal) bool) (p *config.Portal, addr string) {
	for i := range at.portals {
		switch {
		case !fits(&at.portals[i]):
		case len(at.addrs) == len(at.portals):
			return &at.portals[i], reachable(at.addrs[i:])
		default:
			return &at.portals[i], reachable([]string{at.portals[i].Listen})
		}
	}
	return nil, ""
}

// needsTLS reports whether nothing goes by on the portal that is not encrypted.
func needsTLS(p *config.Portal) bool { return p.TLS != nil && p.TLS.Required() }

// inClear returns what finds a portal for a protocol without TLS, over TCP or over RoCE.
func inClear(protocol string, roce bool) func(*config.Portal) bool {
	return func(p *config.Portal) bool { return p.Speaks(protocol) && !needsTLS(p) && p.RoCE() == roce }
}

// url is where our own initiator gets in without TLS, "" if nowhere.
func (at waysIn) url() string {
	for _, way := range []struct {
		scheme, protocol string
		roce             bool
	}{{"iser", "iser", false}, {"iser+roce", "iser", true}, {"iscsi", "iscsi", false}} {
		if p, addr := at.portal(inClear(way.protocol, way.roce)); p != nil {
			return way.scheme + "://" + addr
		}
	}
	return ""
}

// lun are the commands for a LUN.
func (at waysIn) lun(iqn string, lun int) (all []string) {
	say := func(format, base string, more ...any) {
		all = append(all, fmt.Sprintf(format, append([]any{fmt.Sprintf("%s/%s/%d", base, iqn, lun)}, more...)...))
	}
	if base := at.url(); base != "" {
		say("iser-initiator info   %s", base)
		say("iser-initiator bench  %s --rw=randread --bs=4k --iodepth=32 --runtime=5 --time-based", base)
		say("iser-initiator attach %s", base)
	}
	if p, addr := at.portal(inClear("iscsi", false)); p != nil {
		say("qemu-img info         %s", "iscsi://"+addr)
	}
	if p, addr := at.portal(func(p *config.Portal) bool { return p.Speaks("iscsi") && needsTLS(p) }); p != nil {
		own := ""
		if p.TLS.ClientCA != "" {
			own = " --tls-cert CERT --tls-key KEY"
		}
		say("iser-initiator info   %s --tls --tls-ca CA%s", "iscsi://"+addr, own)
	}
	return all
}

// iscsiadm is what a Linux host types to attach a target; open-iscsi has no TLS.
func (at waysIn) iscsiadm(iqn string) []string {
	const form = "iscsiadm -m discovery -t st%s -p %s && iscsiadm -m node -T %s -p %[2]s --login   # Linux"
	for _, way := range []struct {
		protocol     string
		roce         bool
		iface, first string
	}{
		{"iser", false, " -I iser", ", after: rdma link add siw0 type siw netdev DEV"},
		{"iser", true, " -I iser", ", after: rdma link add rxe0 type rxe netdev DEV"},
		{"iscsi", false, "", ""},
	} {
		if p, addr := at.portal(inClear(way.protocol, way.roce)); p != nil {
			return []string{fmt.Sprintf(form, way.iface, addr, iqn) + way.first}
		}
	}
	return nil
}

// nvmeConnects are what a Linux host types to attach a subsystem, by each transport that some
// portal speaks and that the subsystem can be reached by. A subsystem whose hosts have to use TLS
// is reached by it on any portal for NVMe/TCP; it needs no certificate.
func (at waysIn) nvmeConnects(s *target.SubsystemStatus) (all []string) {
	say := func(transport, addr, more, first string) {
		if host, port, err := net.SplitHostPort(addr); err == nil {
			all = append(all, fmt.Sprintf("nvme connect -t %s -a %s -s %s -n %s%s   # Linux, after: %s", transport, host, port, s.NQN, more, first))
		}
	}
	if s.TLS {
		if p, addr := at.portal(func(p *config.Portal) bool { return p.Speaks("nvme-tcp") }); p != nil {
			say("tcp", addr, " --tls", "modprobe nvme-tcp")
		}
		return all
	}
	if p, addr := at.portal(inClear("nvme-tcp", false)); p != nil {
		say("tcp", addr, "", "modprobe nvme-tcp")
	}
	if p, addr := at.portal(inClear("nvme-rdma", false)); p != nil {
		say("rdma", addr, "", "modprobe nvme-rdma; rdma link add siw0 type siw netdev DEV")
	} else if p, addr := at.portal(inClear("nvme-rdma", true)); p != nil {
		say("rdma", addr, "", "modprobe nvme-rdma; rdma link add rxe0 type rxe netdev DEV")
	}
	return all
}

// reachable is an address for the commands in the banner.
func reachable(addrs []string) string {
	if len(addrs) == 0 {
		return net.JoinHostPort("127.0.0.1", target.DefaultPort)
	}
	host, port, err := net.SplitHostPort(addrs[0])
	if err != nil {
		return addrs[0]
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}
