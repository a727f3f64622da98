package rdmatools

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"softiser/internal/usage"
	"softiser/rdma"
)

// transport are the flags that all connecting tools have in common.
type transport struct {
	provider   string
	source     string // local address; the flag's name is the tool's
	crc        string
	p2p        bool
	gso        bool
	rev        int
	busyPoll   spin
	congestion string
	mtu        int

	set *pflag.FlagSet
}

// onlyOver are the flags that mean something to one provider alone.
var onlyOver = map[string]rdma.Provider{
	"crc": rdma.ProviderIWARP, "p2p": rdma.ProviderIWARP, "large-fpdu": rdma.ProviderIWARP, "mpa-rev": rdma.ProviderIWARP,
	"busy-poll": rdma.ProviderIWARP, "congestion": rdma.ProviderIWARP,
	"mtu": rdma.ProviderRoCE, "source": rdma.ProviderRoCE, "bind_source_ip": rdma.ProviderRoCE,
}

func (t *transport) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	t.set = f
	f.StringVar(&t.provider, "provider", rdma.ProviderIWARP.String(), "transport: iwarp (over TCP) or roce (RoCE v2, over UDP port 4791)")
	f.StringVar(&t.crc, "crc", "required", "MPA CRC: required, offered (do not ask; a peer that asks gets it) or off (refuse a peer that asks)")
	f.BoolVar(&t.p2p, "p2p", false, "ask for the peer-to-peer start-up of RFC 6581 (client)")
	f.BoolVar(&t.gso, "large-fpdu", false, "offer FPDUs above the path's segment size, up to 64 KiB")
	f.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "gso" { // siw's name for it, and once ours
			name = "large-fpdu"
		}
		return pflag.NormalizedName(name)
	})
	f.IntVar(&t.rev, "mpa-rev", 2, "MPA revision to ask for: 1 or 2 (client)")
	f.Var(&t.busyPoll, "busy-poll", "spin on the socket for this long before sleeping, for example 50us")
	f.StringVar(&t.congestion, "congestion", "auto", "TCP congestion control: auto (reno within one host, else the host's default), host, or a name such as cubic")
	f.IntVarP(&t.mtu, "mtu", "m", 0, "path MTU of RoCE: 256, 512, 1024, 2048 or 4096 bytes; 0: the largest that the interface carries (client)")
}

// open opens a device of the provider that the flags name. Flags that mean nothing there
// are refused.
func (t *transport) open() (*rdma.Device, error) {
	p, err := rdma.ParseProvider(t.provider)
	if err != nil {
		return nil, usage.Errorf("--provider: %v", err)
	}
	var bad error
	t.set.Visit(func(f *pflag.Flag) {
		if of, only := onlyOver[f.Name]; only && of != p && bad == nil {
			bad = usage.Errorf("--%s goes with --provider %v only, not with %v", f.Name, of, p)
		}
	})
	if bad != nil {
		return nil, bad
	}
	return rdma.Open(&rdma.DeviceConfig{Provider: p})
}

func (t *transport) roce() bool { return t.provider == rdma.ProviderRoCE.String() }

// network is what Dial and Listen are given.
func (t *transport) network() string {
	if t.roce() {
		return rdma.ProviderRoCE.Network()
	}
	return rdma.ProviderIWARP.Network()
}

// params turns the flags into connection parameters.
func (t *transport) params() (rdma.ConnParams, error) {
	p := rdma.ConnParams{MPA: rdma.MPAParams{GSO: t.gso, Rev: t.rev}, BusyPoll: cmp.Or(t.busyPoll.d, rdma.BusyPollOff), Congestion: t.congestion}
	p.RoCE.PathMTU = t.mtu
	if t.rev < 1 || t.rev > 2 {
		return p, usage.Errorf("--mpa-rev %d: want 1 or 2", t.rev)
	}
	err := checkMTU(t.mtu)
	if err != nil {
		return p, err
	}
	if p.CRC, err = rdma.ParseCRCMode(t.crc); err != nil {
		return p, usage.Errorf("--crc: %v", err)
	}
	if t.p2p {
		p.MPA.P2P = rdma.P2PWrite | rdma.P2PRead
	}
	p.RoCE.LocalAddr, err = t.local()
	return p, err
}

// local is the local address that was asked for, or the zero one.
func (t *transport) local() (netip.Addr, error) {
	if t.source == "" || !t.roce() {
		return netip.Addr{}, nil
	}
	a, err := netip.ParseAddr(t.source)
	if err != nil {
		return a, usage.Errorf("local address %q: want an IP address", t.source)
	}
	return a, nil
}

// listen listens at an address of this host; flag is the one that names it.
func (t *transport) listen(dev *rdma.Device, addr string, port portFlag, flag string) (*rdma.Listener, error) {
	if addr == "" && t.roce() {
		return nil, usage.Errorf("over RoCE a server listens on one address: say which (%s)", flag)
	}
	return dev.Listen(t.network(), net.JoinHostPort(addr, port.String()), nil)
}

// dial connects to a port of a host.
func (t *transport) dial(ctx context.Context, host string, port portFlag, qp *rdma.QP, p *rdma.ConnParams) (*rdma.ConnInfo, error) {
	info, err := rdma.Dial(ctx, t.network(), net.JoinHostPort(host, port.String()), qp, p)
	return info, withReason(err)
}

// withReason is a rejection with the words of the peer.
func withReason(err error) error {
	var rej *rdma.RejectError
	if errors.As(err, &rej) {
		if why := text(rej.PrivateData); why != "" && !strings.ContainsFunc(why, unprintable) {
			return &rejected{err, why}
		}
	}
	return err
}

// unprintable is a rune that no words have: other services, an NVMe port's for one, reject with codes.
func unprintable(r rune) bool { return r == utf8.RuneError || !unicode.IsPrint(r) }

// rejected is a rejection with the words that the peer has given as its reason.
type rejected struct {
	error
	why string
}

func (r *rejected) Error() string { return r.error.Error() + ": " + r.why }
func (r *rejected) Unwrap() error { return r.error }

// text is private data that the connection manager may have padded with zeros.
func text(b []byte) string { return strings.TrimRight(string(b), "\x00") }

// maxReason is how much of a reason fits the private data of a rejection over RoCE, bytes.
const maxReason = 148

// reject refuses a connection for a reason that the peer is told.
func reject(req *rdma.ConnRequest, why error) error {
	b := []byte(why.Error())
	_ = req.Reject(b[:min(len(b), maxReason)])
	return why
}
