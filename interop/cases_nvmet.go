package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"softiser/internal/nvme"
	"softiser/internal/nvmerdma"
)

// Our host's transport against Linux's NVMe target, over siw.

const nvmetNQN = "nqn.2026-11.softiser:linux"

// nvmetQueue is a queue of a host that sends one command at a time.
type nvmetQueue struct {
	tr   nvme.HostTransport
	cmd  nvme.HostCommand
	done chan error
}

func (q *nvmetQueue) Completed(*nvme.HostCommand) { q.done <- nil }
func (q *nvmetQueue) BatchEnd()                   {}
func (q *nvmetQueue) Ended(err error)             { q.done <- fmt.Errorf("the connection has ended: %v", err) }

func (q *nvmetQueue) do(s nvme.SQE, data ...[]byte) (*nvme.CQE, error) {
	q.cmd.SQE, q.cmd.Data = s, data
	q.tr.Submit(&q.cmd)
	q.tr.Push()
	select {
	case err := <-q.done:
		if err != nil {
			return nil, err
		}
	case <-time.After(time.Minute):
		return nil, fmt.Errorf("no answer to %v", s.Opcode())
	}
	if st := q.cmd.CQE.Status(); !st.OK() {
		return nil, fmt.Errorf("%v: %w", s.Opcode(), st)
	}
	return &q.cmd.CQE, q.cmd.Err
}

// nvmetHost connects to a subsystem: admin queue and one I/O queue.
type nvmetHost struct {
	dev       *nvmerdma.Device
	dialer    nvmerdma.HostDialer
	admin, io *nvmetQueue
}

func (h *nvmetHost) close() error {
	for _, q := range []*nvmetQueue{h.io, h.admin} {
		if q != nil {
			q.tr.Terminate(nil)
			<-q.tr.(*nvmerdma.Host).Ended()
		}
	}
	return h.dev.Close()
}

// queue connects one queue; the result is that of Connect.
func (h *nvmetHost) queue(ctx context.Context, hq nvme.HostQueue) (*nvmetQueue, uint16, error) {
	tr, err := h.dialer.Dial(ctx, hq)
	if err != nil {
		return nil, 0, err
	}
	q := &nvmetQueue{tr: tr, done: make(chan error, 2)}
	tr.Start(q)
	d := nvme.ConnectData{HostID: nvme.HostID{15: 1}, CntlID: nvme.CntlIDDynamic, Subsystem: nvmetNQN, Host: "nqn.2026-11.softiser:harness"}
	if hq.ID != 0 {
		d.CntlID = hq.CntlID
	}
	var s nvme.SQE
	c := s.NewConnect()
	c.SetQID(hq.ID)
	c.SetSQSize(uint16(hq.Entries - 1))
	e, err := q.do(s, d.AppendTo(nil))
	if err != nil {
		return q, 0, fmt.Errorf("queue %d: %w", hq.ID, err)
	}
	return q, nvme.ConnectResult(e.DW0()).CntlID(), nil
}

// open connects, enables the controller, and learns how much data goes in a capsule.
func (h *nvmetHost) open(ctx context.Context) (*nvme.Controller, error) {
	var id uint16
	var err error
	if h.admin, id, err = h.queue(ctx, nvme.HostQueue{Entries: 32}); err != nil {
		return nil, err
	}
	var s nvme.SQE
	s.NewPropertySet(nvme.PropCC, uint64(nvme.NewConfig(nvme.CommandSetNVM, true)))
	if _, err = h.admin.do(s); err != nil {
		return nil, err
	}
	s.NewIdentify(nvme.CNSController, 0)
	b := make([]byte, nvme.IdentifyLen)
	if _, err = h.admin.do(s, b); err != nil {
		return nil, err
	}
	c, err := nvme.ParseController(b)
	if err != nil || c.CntlID != id {
		return nil, fmt.Errorf("controller %d says that it is %d: %v", id, c.CntlID, err)
	}
	inside := int(c.IOCCSZ)*16 - nvme.SQELen
	h.io, _, err = h.queue(ctx, nvme.HostQueue{ID: 1, CntlID: id, Entries: 32, InCapsule: inside})
	return c, err
}

// nvmetTransfers writes and reads at all sizes, in pieces.
func nvmetTransfers(ctx context.Context, e *Env) (said string, err error) {
	if _, err := e.In("%s", "siw_up || die siw\nnvmet_up rdma "+nvmetNQN+" || die nvmet"); err != nil {
		return "", err
	}
	dev, err := nvmerdma.Open(nvmerdma.Config{Host: true})
	if err != nil {
		return "", err
	}
	h := &nvmetHost{dev: dev, dialer: nvmerdma.HostDialer{Config: nvmerdma.HostConfig{Device: dev, Address: fmt.Sprintf("127.0.0.1:%d", e.Port(3260))}}}
	defer func() { err = errors.Join(err, h.close()) }()
	c, err := h.open(ctx)
	if err != nil {
		return "", err
	}
	for i, n := range []int{512, 4096, 4608, 8192, 65536, 131072, 1 << 20} {
		for _, lba := range []uint64{0, 7, 4096} {
			want := bytes.Repeat([]byte{byte(i + 1), byte(lba), 3, byte(n >> 9)}, n/4)
			var s nvme.SQE
			s.Init(nvme.OpWrite, 1)
			s.ReadWrite().SetRange(lba, uint32(n/512))
			if _, err := h.io.do(s, want[:n/4], want[n/4:]); err != nil {
				return "", fmt.Errorf("%d bytes at block %d: %w", n, lba, err)
			}
			got := make([]byte, n)
			s.Init(nvme.OpRead, 1)
			s.ReadWrite().SetRange(lba, uint32(n/512))
			if _, err := h.io.do(s, got[:n/2], got[n/2:]); err != nil {
				return "", fmt.Errorf("%d bytes at block %d: %w", n, lba, err)
			}
			if !bytes.Equal(got, want) {
				return "", fmt.Errorf("%d bytes at block %d: other data has come back", n, lba)
			}
		}
	}
	return fmt.Sprintf("all the same; %s, %d bytes in a capsule", h.io.tr.Describe(), int(c.IOCCSZ)*16-nvme.SQELen), nil
}
