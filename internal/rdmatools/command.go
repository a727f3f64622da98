// Package rdmatools has the command-line tools around package rdma: rping, ucmatose,
// udaddy, mckey and the pingpongs, which speak the protocols of rdma-core's tools of the
// same names, so that either end may be a Linux machine with siw, rdma_rxe or an RNIC;
// devinfo; and measurements in the manner of perftest, whose own programs may be one end
// too.
package rdmatools

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"softiser/internal/usage"
	"softiser/rdma"
)

// Command is the group "rdma" with all tools.
func Command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rdma",
		Short: "Test and measure RDMA connections (rping, ucmatose, udaddy, mckey, pingpongs, devinfo, bandwidth, latency)",
		Example: "  iser-initiator rdma rping -s -a 127.0.0.1          # server\n" +
			"  iser-initiator rdma rping -c -a 127.0.0.1 -C 10    # client\n" +
			"  iser-initiator rdma devinfo",
	}
	cmd.AddCommand(rpingCommand(), ucmatoseCommand(), udaddyCommand(), mckeyCommand(), devinfoCommand())
	cmd.AddCommand(pingpongCommands()...)
	cmd.AddCommand(perfCommands()...)
	for _, tool := range cmd.Commands() {
		if tool.Long == "" {
			tool.Long = tool.Short + "."
		}
		tool.Long += exitHelp
	}
	return cmd
}

// exitHelp ends the help of every tool.
const exitHelp = `

Exit codes: 0 all went well, 1 an error (the message says which), 2 wrong usage, 4 the connection was refused, 8 a time-out.`

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
			return rdma.WC{}, cmp.Or(over(ctx), err)
		}
	}
	wc := e.wc[0]
	if wc.Status == rdma.StatusSuccess {
		return wc, nil
	}
	return wc, e.failed(&wc)
}

// failed says why a request has failed, and waits for the end of the connection that this
// is, to know its cause.
func (e *endpoint) failed(wc *rdma.WC) error {
	if alone := e.qp.Type() == rdma.TypeUD && wc.Status != rdma.StatusFlushed; alone || wc.Status == rdma.StatusUnsupported { // which do not end it
		return fmt.Errorf("%v: %v", wc.Opcode, wc.Status)
	}
	<-e.qp.Done()
	err := cmp.Or(e.qp.Err(), io.EOF)
	if wc.Status == rdma.StatusFlushed {
		return err
	}
	return fmt.Errorf("%v failed: %v: %w", wc.Opcode, wc.Status, err)
}

// disconnect ends the connection gracefully.
func (e *endpoint) disconnect() {
	e.qp.Disconnect()
	<-e.qp.Done()
}

// interrupted is err, or why ctx has ended: a signal closes the connections and listeners that a
// tool waits for, and they fail of that. Wrong usage remains that.
func interrupted(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil && !usage.Is(err) {
		return ctx.Err()
	}
	return err
}

// printJSON writes v as one indented JSON document.
func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
