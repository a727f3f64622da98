package nvmf

import (
	"context"
	"errors"
	"fmt"
	"time"

	"softiser/internal/nvme"
)

// adminQueue is the queue of an association that the controller itself is asked by.
type adminQueue struct{ *queue }

// do runs an admin command whose success is expected; data is what it brings.
func (q adminQueue) do(ctx context.Context, set func(*nvme.SQE), data []byte, name string) (nvme.CQE, error) {
	clear(data) // the controller may send less, and what was there is no answer of its
	e, err := q.run(ctx, set, data)
	return succeeded(e, err, name)
}

// identify runs an Identify, under that name in errors, and reads its data structure into b, which has nvme.IdentifyLen bytes.
func (q adminQueue) identify(ctx context.Context, cns nvme.CNS, nsid uint32, b []byte, name string) error {
	_, err := q.do(ctx, func(s *nvme.SQE) { s.NewIdentify(cns, nsid) }, b, name)
	return err
}

// succeeded is what an admin command has come to whose success is expected.
func succeeded(e nvme.CQE, err error, name string) (nvme.CQE, error) {
	if err != nil {
		return e, fmt.Errorf("nvmf: %s: %w", name, err)
	}
	if e.Status() != nvme.Success {
		return e, statusError(name, e.Status())
	}
	return e, nil
}

func (q adminQueue) property(ctx context.Context, p nvme.PropertyOffset) (uint64, error) {
	e, err := q.do(ctx, func(s *nvme.SQE) { s.NewPropertyGet(p) }, nil, "Property Get "+p.String())
	return e.Result(), err
}

func (q adminQueue) setProperty(ctx context.Context, p nvme.PropertyOffset, v uint64) error {
	_, err := q.do(ctx, func(s *nvme.SQE) { s.NewPropertySet(p, v) }, nil, "Property Set "+p.String())
	return err
}

// pollStatus asks for CSTS until done says that it is over, or limit has passed.
func (q adminQueue) pollStatus(ctx context.Context, limit time.Duration, what string, done func(nvme.CtrlStatus) bool) error {
	end := time.Now().Add(limit)
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		v, err := q.property(ctx, nvme.PropCSTS)
		if err != nil {
			return err
		}
		if s := nvme.CtrlStatus(v); done(s) {
			return nil
		} else if s.Fatal() {
			return errors.New("nvmf: the controller reports a fatal status")
		}
		if time.Now().After(end) {
			return fmt.Errorf("nvmf: the controller is not %s after %v", what, limit)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (q adminQueue) logPage(ctx context.Context, id nvme.LogID, at uint64, b []byte) error {
	_, err := q.do(ctx, func(s *nvme.SQE) { s.NewGetLogPage(id, 0, at, uint32(len(b))) }, b, "Get Log Page")
	return err
}

// shutDown tells the controller that its host leaves.
func (q adminQueue) shutDown(ctx context.Context) error {
	cc := nvme.NewConfig(nvme.CommandSetNVM, true).WithShutdown(nvme.ShutdownNormal)
	if err := q.setProperty(ctx, nvme.PropCC, uint64(cc)); err != nil {
		return err
	}
	return q.pollStatus(ctx, q.a.controller().shutdownTime(), "shut down", nvme.CtrlStatus.ShutdownDone)
}

// shutdownTime is how long the controller may take to shut down: it flushes its cache. Linux waits as long.
func (c *controller) shutdownTime() time.Duration {
	const least, most = 5 * time.Second, time.Minute
	return min(max(time.Duration(c.ident.RTD3E)*time.Microsecond, least), most)
}
