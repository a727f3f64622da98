// Package rdmatools has the command-line tools around package rdma: rping and
// ucmatose, which speak the protocols of rdma-core's tools of the same names, so
// that either end may be a Linux machine with siw or an RNIC; devinfo; and
// measurements in the manner of perftest, whose own programs may be one end too.
package rdmatools

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"softiser/internal/usage"
	"softiser/rdma"
)

// Command is the group "rdma" with all tools.
func Command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rdma",
		Short: "Test and measure RDMA connections (rping, ucmatose, devinfo, bandwidth, latency)",
	}
	cmd.AddCommand(RPing(), UCMatose(), DevInfo())
	cmd.AddCommand(Perf()...)
	return cmd
}

// transport are the flags that all connecting tools have in common.
type transport struct {
	crc        string
	p2p        bool
	gso        bool
	rev        int
	busyPoll   spin
	congestion string
}

func (t *transport) flags(cmd *cobra.Command) {
	f := cmd.Flags()
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
}

// params turns the flags into connection parameters.
func (t *transport) params() (rdma.ConnParams, error) {
	p := rdma.ConnParams{MPA: rdma.MPAParams{GSO: t.gso, Rev: t.rev}, BusyPoll: cmp.Or(t.busyPoll.d, rdma.BusyPollOff), Congestion: t.congestion}
	var err error
	if p.CRC, err = rdma.ParseCRCMode(t.crc); err != nil {
		return p, usage.Errorf("--crc: %v", err)
	}
	if t.p2p {
		p.MPA.P2P = rdma.P2PWrite | rdma.P2PRead
	}
	return p, nil
}

// endpoint is one queue pair with everything it needs.
type endpoint struct {
	dev *rdma.Device
	pd  *rdma.PD
	cq  *rdma.CQ
	qp  *rdma.QP
	wc  [1]rdma.WC
}

// newEndpoint makes an endpoint on dev. handler may be nil; then next is for
// waiting.
func newEndpoint(dev *rdma.Device, q rdma.QPConfig, handler func(*rdma.CQ)) (*endpoint, error) {
	e := &endpoint{dev: dev}
	var err error
	if e.pd, err = dev.AllocPD(); err != nil {
		return nil, err
	}
	if e.cq, err = dev.CreateCQ(rdma.CQConfig{Depth: max(256, 2*(q.MaxSend+q.MaxRecv)), Handler: handler}); err != nil {
		return nil, err
	}
	q.SendCQ, q.RecvCQ = e.cq, e.cq
	if e.qp, err = e.pd.CreateQP(q); err != nil {
		return nil, err
	}
	return e, nil
}

func (e *endpoint) close() {
	_ = e.qp.Close()
	_ = e.cq.Close()
	_ = e.pd.Dealloc()
}

func (e *endpoint) sgl(mem []byte) []rdma.SGE {
	return []rdma.SGE{{Mem: mem, LKey: e.pd.LocalDMAKey()}}
}

// next waits for a completion. An unsuccessful one is an error that says why the
// connection ended.
func (e *endpoint) next(ctx context.Context) (rdma.WC, error) {
	for e.cq.Poll(e.wc[:]) == 0 {
		if err := e.cq.Wait(ctx); err != nil {
			return rdma.WC{}, err
		}
	}
	wc := e.wc[0]
	if wc.Status == rdma.StatusSuccess {
		return wc, nil
	}
	if wc.Status == rdma.StatusFlushed {
		<-e.qp.Done()
		if err := e.qp.Err(); err != nil {
			return wc, err
		}
		return wc, io.EOF
	}
	<-e.qp.Done() // a work request that failed ends the connection
	return wc, fmt.Errorf("%v failed: %v: %w", wc.Opcode, wc.Status, e.qp.Err())
}

// disconnect ends the connection gracefully.
func (e *endpoint) disconnect() {
	e.qp.Disconnect()
	<-e.qp.Done()
}

// printJSON writes v as one indented JSON document.
func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
