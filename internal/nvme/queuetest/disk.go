package queuetest

import (
	"errors"
	"sync"
	"testing"

	"softiser/internal/nvme"
)

// Disk is what lies above the controller's side: it reads and writes memory. The address
// of a command's data is its first LBA, in bytes.
type Disk struct {
	upper
	C   Controller
	Mem []byte

	mu       sync.Mutex
	opts     DiskOptions
	arrived  map[int]func(error) // by slot: who waits for DataArrived
	open     int                 // commands without Sent
	commands int
	inside   int // that had data in their capsules
	ended    chan error
}

// DiskOptions change how a Disk answers. The zero value is as most controllers do.
type DiskOptions struct {
	// Hold, when set, may take a command away from the disk: true.
	Hold func(*nvme.Command) bool
	// NoSQHead has responses say nothing that data cannot say as well, so that a transport
	// may leave them out.
	NoSQHead bool
	// Early has data transmitted before the response is known.
	Early bool
	// Gate, when set, is waited for in Sent.
	Gate <-chan struct{}
}

// NewDisk makes a disk; whoever makes it starts c with it.
func NewDisk(t testing.TB, c Controller, mem []byte) *Disk {
	t.Helper()
	d := &Disk{C: c, Mem: mem, arrived: map[int]func(error){}, ended: make(chan error, 1)}
	d.upper.t, d.upper.name = t, "controller"
	return d
}

// Set changes how the disk answers from now on.
func (d *Disk) Set(o DiskOptions) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.opts = o
}

// Hold is Set of Hold alone.
func (d *Disk) Hold(f func(*nvme.Command) bool) { d.Set(DiskOptions{Hold: f}) }

// Fence orders what the test does with the disk's memory and what the disk does, as the
// socket between them does.
func (d *Disk) Fence() {
	d.mu.Lock()
	defer d.mu.Unlock()
}

// Commands returns how many commands have come up, and how many of them had data in their
// capsules.
func (d *Disk) Commands() (n, inside int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.commands, d.inside
}

// slot is what the disk keeps with a slot for all times, so that nothing is allocated for
// a command.
type slot struct {
	list [2][]byte
	done func(error) // answers the command when its data has arrived
	cqe  nvme.CQE
}

func (d *Disk) slot(k *nvme.Command) *slot {
	if k.App == nil {
		s := new(slot)
		s.done = func(err error) { d.Respond(k, statusOf(err)) }
		k.App = s
	}
	return k.App.(*slot)
}

func statusOf(err error) nvme.Status {
	switch {
	case err == nil:
		return nvme.Success
	case errors.Is(err, nvme.ErrDataDigest):
		return nvme.TransientTransport
	}
	return nvme.DataTransferError
}

// Command implements nvme.QueueUpper; so do the following.
func (d *Disk) Command(k *nvme.Command) {
	d.upcall("Command")
	d.mu.Lock()
	d.open++
	d.commands++
	if len(k.Data) > 0 {
		d.inside++
	}
	o := d.opts
	d.mu.Unlock()
	if o.Hold == nil || !o.Hold(k) {
		d.Execute(k)
	}
}

// Execute carries a command out and answers it, perhaps later.
func (d *Disk) Execute(k *nvme.Command) {
	d.mu.Lock()
	early := d.opts.Early
	d.mu.Unlock()
	n, lba := int(k.SQE.SGL().Length()), k.SQE.ReadWrite().SLBA()
	if size := uint64(len(d.Mem)); lba > size || uint64(n) > size-lba {
		d.Respond(k, nvme.LBAOutOfRange)
		return
	}
	s, mem := d.slot(k), d.Mem[lba:][:n]
	switch {
	case k.Corrupt:
		d.Respond(k, nvme.TransientTransport)
	case k.NoRoom:
		d.Respond(k, nvme.CommandInterrupted)
	case n == 0:
		d.Respond(k, nvme.Success)
	case k.SQE.Opcode() == nvme.OpRead: // in two transfers, the second of two pieces
		half := n / 2
		if half > 0 {
			s.list[0] = mem[:half]
			d.C.PutData(k, 0, s.list[:1], false)
		}
		s.list = [2][]byte{mem[half : half+1], mem[half+1:]}
		d.C.PutData(k, uint32(half), s.list[:], true)
		if early {
			d.C.Push()
		}
		d.Respond(k, nvme.Success)
	case k.SQE.SGL().Kind() == nvme.SGLInCapsule:
		copy(mem, k.Data)
		d.Respond(k, nvme.Success)
	default:
		s.list = [2][]byte{mem[:1], mem[1:]}
		d.Get(k, s.list[:], s.done)
	}
}

// Get asks for the data of a command; then runs in DataArrived.
func (d *Disk) Get(k *nvme.Command, list [][]byte, then func(error)) {
	d.mu.Lock()
	d.arrived[k.Slot] = then
	d.mu.Unlock()
	if err := d.C.GetData(k, 0, list); err != nil {
		d.dataArrived(k, err)
	}
}

// Respond answers a command.
func (d *Disk) Respond(k *nvme.Command, s nvme.Status) {
	e := &d.slot(k).cqe
	*e = nvme.CQE{}
	e.SetCID(k.SQE.CID())
	e.SetStatus(s)
	d.mu.Lock()
	if d.opts.NoSQHead {
		e.SetSQHead(nvme.NoSQHead)
	}
	d.mu.Unlock()
	d.C.Respond(k, e)
}

func (d *Disk) DataArrived(k *nvme.Command, err error) {
	d.upcall("DataArrived", "Push", "Cancel")
	d.dataArrived(k, err)
}

func (d *Disk) dataArrived(k *nvme.Command, err error) {
	d.mu.Lock()
	f := d.arrived[k.Slot]
	delete(d.arrived, k.Slot)
	d.mu.Unlock()
	if f == nil {
		d.t.Errorf("DataArrived, and nobody has asked for data (%v)", err)
		return
	}
	f(err)
}

func (d *Disk) Sent(*nvme.Command) {
	d.upcall("Sent", "Push")
	d.mu.Lock()
	gate := d.opts.Gate
	d.mu.Unlock()
	if gate != nil {
		<-gate
	}
	d.mu.Lock()
	d.open--
	d.mu.Unlock()
}

func (d *Disk) Ended(err error) {
	d.upcall("Ended")
	d.over.Store(true)
	d.ended <- err
}

// End waits until the connection has ended, and returns why. Commands that somebody
// holds are still open.
func (d *Disk) End() error {
	d.t.Helper()
	err := recv(d.t, "the end of the controller's side", d.ended)
	recv(d.t, "the controller's last up-call", d.C.Ended())
	return err
}

// Empty checks that no command and no transfer is left.
func (d *Disk) Empty() {
	d.t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.open != 0 || len(d.arrived) != 0 {
		d.t.Errorf("%d commands and %d transfers are left", d.open, len(d.arrived))
	}
}

// Over is End and Empty.
func (d *Disk) Over() error {
	d.t.Helper()
	err := d.End()
	d.Empty()
	return err
}
