package registry

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"softiser/config"
	"softiser/internal/iscsi"
	"softiser/rdma"
	"softiser/target"
	"softiser/target/scsi"
)

// This file translates the file model, which is data, into the types of the
// packages that do the work.

// ServerConfig describes the server of a configuration, without log, staging memory and
// what belongs to the process.
func ServerConfig(c *config.Config) (target.Config, error) {
	tc := target.Config{
		Limits: serverLimits(&c.Limits),
		Timeouts: target.Timeouts{
			Login: c.ISCSI.LoginTimeout.D(), NopInterval: noneIfZero(c.ISCSI.NopInterval.D()), NopReply: c.ISCSI.NopTimeout.D(),
		},
		Session:      sessionParams(&c.ISCSI),
		StateDir:     c.Admin.StateDir,
		DiscoveryNQN: c.Discovery.NQN, Referrals: referrals(c.Discovery.Referrals),
	}
	tc.Limits.Commands = c.ISCSI.QueueDepth
	var err error
	if tc.DiscoveryAuth, err = auth(&c.Discovery.Auth); err != nil {
		return tc, err
	}
	for _, p := range c.Portals {
		tp := target.Portal{
			Listen: p.Listen, Advertise: p.Advertise, Freebind: p.Freebind, Group: uint16(p.Group),
			CongestionControl: p.Congestion, SendBuffer: int(p.SendBuffer), RecvBuffer: int(p.RecvBuffer),
			BusyPoll: busyPoll(c.Transport.BusyPoll),
			IRD:      c.Transport.IRD, ORD: c.Transport.ORD,
			StreamLogin: c.Transport.StreamISER,
			NoTCP:       !p.Speaks("iscsi"), NoISER: !p.Speaks("iser"), NoNVMeTCP: !p.Speaks("nvme-tcp"), NoNVMeRDMA: !p.Speaks("nvme-rdma"),
		}
		tp.Certificates = certificates(p.TLS)
		switch c.Transport.CRC {
		case "offered":
			tp.CRC = target.CRCOffered
		case "off":
			tp.CRC = target.CRCOff
		}
		switch c.Transport.Zerocopy {
		case "on":
			tp.Zerocopy = target.ZerocopyOn
		case "off":
			tp.Zerocopy = target.ZerocopyOff
		}
		switch c.Transport.FPDU {
		case "auto", "big":
			tp.LargeFPDU = true
		}
		tc.Portals = append(tc.Portals, tp)
	}
	return tc, nil
}

// certificates are those of a portal; nil: none.
func certificates(t *config.PortalTLS) *target.Certificates {
	if t == nil {
		return nil
	}
	return &target.Certificates{Own: t.Own(), ClientCAs: t.ClientCAs(), Required: t.Required(), NameInitiators: t.Names == "certificate"}
}

// serverLimits are those that a reload can change.
func serverLimits(l *config.Limits) target.Limits {
	return target.Limits{
		Sessions: l.Sessions, SessionsPerAddress: l.SessionsPerAddress, ReservedSessions: l.ReservedSessions,
		PendingLogins: l.PendingLogins, PendingPerAddress: l.PendingPerAddress, DiscoveryAge: noneIfZero(l.DiscoveryAge.D()),
	}
}

// noneIfZero: the file says "never" with 0, the library with a negative value.
func noneIfZero(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}

func sessionParams(c *config.ISCSI) target.SessionParams {
	retain := int(c.Time2Retain.D() / time.Second)
	if retain == 0 {
		retain = -1 // the library's 0 is the default
	}
	return target.SessionParams{
		AllowUnsolicited: !c.InitialR2T, NoImmediateData: !c.ImmediateData,
		MaxBurstLength: int(c.MaxBurst), FirstBurstLength: int(c.FirstBurst),
		MaxRecvDataSegmentLength: int(c.MaxRecvDataSegment), MaxOutstandingR2T: c.MaxOutstandingR2T,
		MaxConnections: c.MaxConnections, ErrorRecoveryLevel: c.ErrorRecoveryLevel,
		DefaultTime2Wait: int(c.Time2Wait.D() / time.Second), DefaultTime2Retain: retain,
		HeaderDigest: digests(c.HeaderDigest), DataDigest: digests(c.DataDigest),
	}
}

func digests(names []string) []string {
	var ds []string
	for _, n := range names {
		switch n {
		case "none":
			ds = append(ds, "None")
		case "crc32c":
			ds = append(ds, "CRC32C")
		}
	}
	return ds
}

func auth(a *config.Auth) (target.Auth, error) {
	var t target.Auth
	if a.Method != "chap" {
		return t, nil
	}
	for _, name := range a.Algorithms {
		alg, err := iscsi.ParseCHAPAlgorithm(name)
		if err != nil {
			return t, err
		}
		t.Algorithms = append(t.Algorithms, int(alg))
	}
	for i := range a.Users {
		u := &a.Users[i]
		t.Users = append(t.Users, target.Credential{Name: u.Name, Secret: string(u.Secret())})
	}
	if m := a.Mutual; m != nil {
		t.Mutual = target.Credential{Name: m.Name, Secret: string(m.Secret())}
	}
	return t, nil
}

func targetConfig(c *config.Config, t *config.Target) (target.Target, error) {
	tt := target.Target{Name: t.IQN, Alias: t.Alias, Redirect: target.Redirect{Address: t.Redirect}, ExplicitALUA: t.ALUAMode == "explicit"}
	var err error
	if tt.Auth, err = auth(&t.Auth); err != nil {
		return tt, fmt.Errorf("target %s: %w", t.IQN, err)
	}
	if tt.ACL, err = acl(&t.ACL); err != nil {
		return tt, fmt.Errorf("target %s: %w", t.IQN, err)
	}
	if c.HA.Moves(t) {
		for _, p := range c.HA.Portals {
			a, _ := config.ParseElsewhere(p.Address) // it has been checked
			tt.Remote = append(tt.Remote, target.RemotePortal{Address: a.AddrPort.String(), RoCE: a.RoCE, Group: uint16(p.Group)})
		}
	}
	tt.Listen = t.Portals
	return tt, nil
}

// acl makes one rule of every name with every network; an empty list stands for
// all. Names that are bound to users have rules of their own.
func acl(a *config.ACL) (target.ACL, error) {
	if len(a.Initiators) == 0 && len(a.Networks) == 0 && len(a.Bind) == 0 {
		return nil, nil
	}
	names, nets := a.Initiators, []netip.Prefix{{}}
	if len(names) == 0 {
		names = []string{""}
	}
	if len(a.Networks) > 0 {
		nets = nets[:0]
	}
	for _, n := range a.Networks {
		p, err := netip.ParsePrefix(n)
		if err != nil {
			ip, ipErr := netip.ParseAddr(n)
			if ipErr != nil {
				return nil, fmt.Errorf("acl: network %q: want an address or a prefix such as 10.0.0.0/8", n)
			}
			p = netip.PrefixFrom(ip, ip.BitLen())
		}
		nets = append(nets, p)
	}
	var rules target.ACL
	for _, name := range names {
		for _, p := range nets {
			rules = append(rules, target.Rule{Initiator: name, Network: p})
		}
	}
	for _, b := range a.Bind {
		for _, p := range nets {
			rules = append(rules, target.Rule{Initiator: b.Initiator, Network: p, Users: b.Users, Certificates: b.Certificates})
		}
	}
	return rules, nil
}

// lunConfig translates a LUN of the configuration into what target/iscsi takes.
func lunConfig(c *config.Config, v config.Volume, l config.LUN) (scsi.LUConfig, error) {
	lc := scsi.LUConfig{
		LUN: uint16(l.LUN), ReadOnly: v.ReadOnly || l.ReadOnly, Removable: v.Removable, Serial: v.Serial,
		Workers: c.Limits.Workers,
		QoS:     qos(v.QoS),
	}
	if err := lc.Placement.UnmarshalText([]byte(v.Placement)); err != nil {
		return lc, fmt.Errorf("volume %s: %w", v.Name, err)
	}
	if l.ALUA != "" || len(l.ALUAGroups) > 0 {
		names := map[uint16]string{0: cmp.Or(l.ALUA, "active-optimized")}
		for _, g := range l.ALUAGroups {
			names[uint16(g.Group)] = g.State
		}
		lc.Access = map[uint16]scsi.AccessState{}
		for g, name := range names {
			var s scsi.AccessState
			if err := s.UnmarshalText([]byte(name)); err != nil {
				return lc, fmt.Errorf("LUN %d: %w", l.LUN, err)
			}
			lc.Access[g] = s
		}
	}
	if v.WWID != "" {
		id, err := hex.DecodeString(strings.TrimPrefix(strings.ToLower(v.WWID), "naa."))
		if err != nil {
			return lc, fmt.Errorf("volume %s: wwid %q: want 32 hex digits", v.Name, v.WWID)
		}
		lc.NAA = id
	}
	return lc, nil
}

func qos(q config.QoS) scsi.QoS {
	return scsi.QoS{IOPS: float64(q.IOPS), BytesPerSec: float64(q.Bandwidth), BurstIOs: float64(q.BurstIOPS), BurstBytes: float64(q.Burst)}
}

// busyPoll translates transport.busy_poll_us, which has been checked.
func busyPoll(s string) time.Duration {
	us, err := strconv.Atoi(s)
	switch {
	case err != nil:
		return rdma.BusyPollAuto
	case us == 0:
		return rdma.BusyPollOff
	}
	return time.Duration(us) * time.Microsecond
}
