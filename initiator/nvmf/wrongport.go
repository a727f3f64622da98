package nvmf

import (
	"context"
	"errors"
	"fmt"
	"time"

	"softiser/initiator/blockio"
	"softiser/initiator/internal/wrongport"
	"softiser/internal/nvme"
	"softiser/internal/nvme/tls13psk"
	"softiser/internal/nvmerdma"
)

// WrongTransportError ends a Connect or Discover at a port that answers NVMe over the other
// transport, and not over the one that was asked for.
type WrongTransportError struct {
	Address string    // of the port
	Asked   Transport // that it does not speak
	// Err is how the port broke the start-up off; nil: it kept silent. A port that breaks
	// off may speak both and have been short of something.
	Err error
}

func (e *WrongTransportError) Unwrap() error { return e.Err }

func (e *WrongTransportError) Error() string {
	other := e.Asked.other()
	if e.Err != nil {
		return fmt.Sprintf("%v; %s answers NVMe over %v: unless it speaks %v as well, use nvme+%v:// instead of nvme+%v://", e.Err, e.Address, other, e.Asked, other, e.Asked)
	}
	return fmt.Sprintf("%s speaks NVMe over %v but not over %v: use nvme+%v:// instead of nvme+%v://", e.Address, other, e.Asked, other, e.Asked)
}

func (t Transport) other() Transport {
	if t.rdma() {
		return TransportTCP
	}
	return TransportRDMA
}

// dialAdmin makes the connection of an admin queue. The first one finds out what the port
// speaks before its silence is believed.
func (a *Association) dialAdmin(ctx context.Context) (nvme.HostTransport, error) {
	q := nvme.HostQueue{Entries: adminDepth + 1}
	dial := func(ctx context.Context) (nvme.HostTransport, error) { return a.dialer.Dial(ctx, q) }
	if a.spoken {
		return dial(ctx)
	}
	tr, err := wrongport.Connect(ctx, wrongport.Doubt{
		Speaks: func(ctx context.Context) bool { return a.cfg.answers(ctx, a.cfg.Transport.other(), 0) },
		Shows: func(err error) bool { // it speaks TLS, which is for this transport alone
			e, ok := errors.AsType[*tls13psk.Error](err)
			return ok && e.Peer
		},
		Wrong: func(err error) error {
			return &WrongTransportError{Address: a.cfg.Address, Asked: a.cfg.Transport, Err: err}
		},
	}, dial)
	if c := context.Cause(ctx); c != nil && errors.Is(err, context.DeadlineExceeded) {
		err = c // it says what has not come to be
	}
	if err != nil {
		return nil, blockio.NoConnection(err)
	}
	a.spoken = true
	return tr, nil
}

// answers reports whether the port takes a connection for an admin queue over t, before
// anybody has said who he is: a refusal is an answer. patience bounds the time for TCP's
// part; 0: ctx does.
func (c *Config) answers(ctx context.Context, t Transport, patience time.Duration) bool {
	other := *c
	other.pace = nil // a single connection, no attempts after a loss
	other.Transport, other.patience, other.HeaderDigest, other.DataDigest = t, patience, false, false
	if t != c.Transport {
		other.Secure = nil // TLS is for one of the transports only
	}
	d, release, err := other.dialer()
	if err != nil {
		return false
	}
	tr, err := d.Dial(ctx, nvme.HostQueue{Entries: adminDepth + 1})
	if err == nil {
		p := probe{gone: make(chan struct{})}
		tr.Start(p)
		tr.Terminate(errors.New("nvmf: it was only asked what it speaks"))
		<-p.gone
	}
	_ = release()
	_, rejected := errors.AsType[*nvmerdma.RejectError](err)
	return err == nil || rejected
}

// probe is the upper end of a connection without commands.
type probe struct{ gone chan struct{} }

// Completed implements nvme.HostUpper.
func (probe) Completed(*nvme.HostCommand) {}

// BatchEnd implements nvme.HostUpper.
func (probe) BatchEnd() {}

// Ended implements nvme.HostUpper.
func (p probe) Ended(error) { close(p.gone) }
