package nvmf_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"

	"softiser/blockdev"
	"softiser/internal/await"
	"softiser/internal/nvme"
	"softiser/internal/nvmetcp"
	"softiser/target"
	"softiser/target/nvmf"
)

// doorstep keeps one read, and with it the receive goroutine that has brought it.
type doorstep struct {
	blockdev.Device
	armed          atomic.Bool
	entered, leave chan struct{}
}

func (d *doorstep) LeaseRead(l *blockdev.Lease, off int64, n int, m blockdev.Mode) error {
	if d.armed.Swap(false) {
		close(d.entered)
		<-d.leave
	}
	return d.Device.LeaseRead(l, off, n, m)
}

// What a queue has read of its connection when its commands are aborted, and not looked at yet,
// is not carried out afterwards: the host may have written the same blocks by another way.
func TestLateCommands(t *testing.T) {
	for name, end := range map[string]func(*rig, *host){
		"the admin queue is closed": func(r *rig, h *host) {
			h.nc.Close()
			await.True(t, "the controller ends", func() bool { return len(r.srv.Controllers()) == 0 })
		},
		"the controller is reset and enabled again": func(_ *rig, h *host) {
			var s nvme.SQE
			s.NewPropertySet(nvme.PropCC, uint64(nvme.NewConfig(nvme.CommandSetAll, false)))
			if _, err := h.do(s, nil, nil); err != nil {
				t.Fatal(err)
			}
			h.enable()
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := &doorstep{Device: newMem(t, 1<<20), entered: make(chan struct{}), leave: make(chan struct{})}
			r := open(t, func(_ *target.Config, s *nvmf.SubsystemConfig) { s.Namespaces[0].Volume = d })
			h := r.attach(hostNQN, 10, 1)
			d.armed.Store(true)
			capsule := func(op nvme.Opcode, lba uint64, cid uint16, data []byte) []byte {
				var k nvmetcp.CapsuleCmd
				s := rw(op, lba, 1)
				s.SetCID(cid)
				s.SGL().SetBlock(nvme.SGLTransport, 0, 512)
				if data != nil {
					s.SGL().SetBlock(nvme.SGLInCapsule, 0, 512)
				}
				*k.SQE() = s
				k.SetHeader(0, uint32(len(data)), 0)
				return withDigests(k[:], data)
			}
			both := slices.Concat(capsule(nvme.OpRead, 8, 100, nil), capsule(nvme.OpWrite, 0, 101, pattern(512, 1)))
			if _, err := h.io[0].nc.Write(both); err != nil {
				t.Fatal(err)
			}
			<-d.entered
			end(r, h)
			close(d.leave)
			await.True(t, "the queue ends", func() bool { return r.srv.Status().NVMe[0].Connections == len(r.srv.Controllers()) })
			if err := r.srv.RemoveSubsystem(context.Background(), subNQN); err != nil { // waits for every command
				t.Fatal(err)
			}
			got := make([]byte, 512)
			if _, err := d.ReadAt(got, 0); err != nil || string(got) != string(make([]byte, 512)) {
				t.Errorf("a write took effect behind the end of its queue: %v", err)
			}
		})
	}
}
