package rdma

import (
	"fmt"
	"sync"
	"sync/atomic"

	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/mpa"
	"softiser/rdma/internal/verbs"
)

// DeviceConfig limits what can be created on a Device. Zero fields mean the
// default given beside them. The configuration is copied by Open.
type DeviceConfig struct {
	Provider  Provider // iWARP
	MaxQP     int      // queue pairs; 65536
	MaxCQ     int      // completion queues; 65536
	MaxMR     int      // memory regions and windows; 1<<20
	MaxSRQ    int      // shared receive queues; 4096
	MaxPD     int      // protection domains; 65536
	MaxQPWR   int      // work requests per queue; 32768
	MaxSRQWR  int      // work requests per shared receive queue; 327680
	MaxCQE    int      // completions per queue; 1<<20
	MaxSGE    int      // pieces of memory per work request; 64
	MaxInline int      // bytes of an inline work request; 4096
	MaxIRD    int      // RDMA Reads served at once per queue pair; 128
	MaxORD    int      // RDMA Reads outstanding per queue pair; 128
	MaxMsg    uint32   // bytes of one message; 1<<31
	Hooks     Hooks
}

// Hooks are called at rare events, never per work request. They may be nil and
// must return quickly; no lock of this package is held.
type Hooks struct {
	StateChange func(qp *QP, from, to QPState)
	Terminate   func(qp *QP, err *TerminateError)
}

// DeviceAttr are the limits and the identity of a Device.
type DeviceAttr struct {
	Name                                       string
	Vendor                                     string
	Version                                    string
	MaxQP, MaxCQ, MaxMR, MaxSRQ, MaxPD         int
	MaxQPWR, MaxSRQWR, MaxCQE                  int
	MaxSGE, MaxInline                          int
	MaxIRD, MaxORD                             int
	MaxMsg                                     uint32
	LocalDMALKey, FastRegistration, MemWindows bool
	Atomics                                    string // scope of atomic operations
	Provider                                   Provider
	MaxImm                                     uint64 // the largest immediate data
	MaskedAtomics                              bool   // atomics may have masks
	SendImm                                    bool   // OpSendImm
	Types                                      []QPType
	MaxPathMTU                                 int // bytes of payload in a packet, where interfaces carry it; 0: a stream has none
	MaxMulticastGroups                         int // that a local address may belong to; 0: there is no multicast
	PrivateData                                PrivateDataLimits
}

// PrivateDataLimits are how many bytes of private data a message of the connection manager
// has room for. iWARP tells the peer how many were sent, RoCE pads them with zeros.
type PrivateDataLimits struct {
	Request, Reply, Reject int // of a connection
	Lookup, LookupReply    int // of a datagram service; see QP.Resolve
}

// Device is one software RNIC. A device of iWARP needs no Close once its objects are
// closed; one of RoCE keeps UDP port 4791 of the addresses that it has used until then. It owns the STag table; everything else is
// created from it. All methods may be called concurrently.
type Device struct {
	cfg       DeviceConfig
	shared    verbs.Device // with the engines of its queue pairs
	transport provider
	stat      deviceCounters

	life lifetime // protection domains and completion queues use it

	mu  sync.Mutex // guards what follows; taken after QP.v.Mu
	qps map[*QP]struct{}

	nPD, nCQ, nSRQ atomic.Int64
}

func def(p *int, v int) {
	if *p == 0 {
		*p = v
	}
}

// Open creates a device. nil means all defaults.
func Open(cfg *DeviceConfig) (*Device, error) {
	d := &Device{qps: make(map[*QP]struct{})}
	if cfg != nil {
		d.cfg = *cfg
	}
	c := &d.cfg
	def(&c.MaxQP, 65536)
	def(&c.MaxCQ, 65536)
	def(&c.MaxMR, 1<<20)
	def(&c.MaxSRQ, 4096)
	def(&c.MaxPD, 65536)
	def(&c.MaxQPWR, 32768)
	def(&c.MaxSRQWR, 327680)
	def(&c.MaxCQE, 1<<20)
	def(&c.MaxSGE, 64)
	def(&c.MaxInline, 4096)
	def(&c.MaxIRD, 128)
	def(&c.MaxORD, 128)
	if c.MaxMsg == 0 {
		c.MaxMsg = 1 << 31
	}
	for _, v := range []int{c.MaxQP, c.MaxCQ, c.MaxMR, c.MaxSRQ, c.MaxPD, c.MaxQPWR, c.MaxSRQWR, c.MaxCQE, c.MaxSGE, c.MaxInline, c.MaxIRD, c.MaxORD} {
		if v < 0 {
			return nil, invalid("negative device limit %d", v)
		}
	}
	if c.MaxIRD >= mpa.MaxQueue || c.MaxORD >= mpa.MaxQueue {
		return nil, invalid("MaxIRD %d, MaxORD %d: at most %d fit the MPA start-up frames", c.MaxIRD, c.MaxORD, mpa.MaxQueue-1)
	}
	if c.MaxMR > mem.MaxRegions {
		return nil, invalid("MaxMR %d: an STag has room for %d", c.MaxMR, mem.MaxRegions)
	}
	switch c.Provider {
	case ProviderIWARP:
		d.transport = new(overTCP)
	case ProviderRoCE:
		d.transport = new(overUDP)
	default:
		return nil, invalid("%v", c.Provider)
	}
	d.shared.Table.Limit(c.MaxMR)
	return d, nil
}

// Attr returns the limits of the device.
func (d *Device) Attr() DeviceAttr {
	c := &d.cfg
	a := DeviceAttr{
		Name: "softiser0", Vendor: "softiser", Provider: c.Provider,
		MaxQP: c.MaxQP, MaxCQ: c.MaxCQ, MaxMR: c.MaxMR, MaxSRQ: c.MaxSRQ, MaxPD: c.MaxPD,
		MaxQPWR: c.MaxQPWR, MaxSRQWR: c.MaxSRQWR, MaxCQE: c.MaxCQE, MaxSGE: c.MaxSGE,
		MaxInline: c.MaxInline, MaxIRD: c.MaxIRD, MaxORD: c.MaxORD, MaxMsg: c.MaxMsg,
		LocalDMALKey: true, FastRegistration: true, MemWindows: true, Atomics: "device and local 64-bit atomics",
	}
	d.transport.attr(&a)
	return a
}

// Close ends the device. It fails with ErrBusy while objects of it exist.
func (d *Device) Close() error {
	users, first := d.life.end()
	if users > 0 {
		d.mu.Lock()
		qps := len(d.qps)
		d.mu.Unlock()
		return fmt.Errorf("%w: the device has %d queue pairs, %d protection domains, %d completion queues, %d shared receive queues, %d memory regions and windows",
			ErrBusy, qps, d.nPD.Load(), d.nCQ.Load(), d.nSRQ.Load(), d.shared.Table.Count())
	}
	if first {
		d.transport.close()
	}
	return nil
}

// take counts one more object against a limit.
func take(n *atomic.Int64, limit int, what string) error {
	if n.Add(1) > int64(limit) {
		n.Add(-1)
		return fmt.Errorf("%w: %d %s", ErrLimit, limit, what)
	}
	return nil
}

// count has one more object use the device, and counts it against a limit.
func (d *Device) count(n *atomic.Int64, limit int, what string) error {
	if !d.life.use() {
		return errGone("device")
	}
	if err := take(n, limit, what); err != nil {
		d.life.release()
		return err
	}
	return nil
}

// errGone is the error for the use of an object that has ended.
func errGone(what string) error { return fmt.Errorf("%w: %s", ErrClosed, what) }

// PD is a protection domain: queue pairs and memory of different domains do not
// see each other.
type PD struct {
	dev  *Device
	mem  mem.Domain
	life lifetime // regions, windows, shared receive queues and queue pairs use it
}

// AllocPD creates a protection domain.
func (d *Device) AllocPD() (*PD, error) {
	if err := d.count(&d.nPD, d.cfg.MaxPD, "protection domains"); err != nil {
		return nil, err
	}
	pd := &PD{dev: d}
	pd.mem.Revoked = pd.revoked
	return pd, nil
}

// revoked is called when a region of the domain that any queue pair may have been
// sending from has been revoked.
func (pd *PD) revoked(r *mem.Region) {
	for _, qp := range pd.dev.pairs(pd) {
		qp.v.Mem.Revoked(r)
	}
}

func (d *Device) pairs(pd *PD) []*QP {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []*QP
	for qp := range d.qps {
		if qp.pd == pd {
			out = append(out, qp)
		}
	}
	return out
}

// Device returns the device of the domain.
func (pd *PD) Device() *Device { return pd.dev }

// LocalDMAKey is the reserved lkey with which any memory of the process may be
// the local source or sink of a work request, without registration. It is not
// valid as an rkey.
func (pd *PD) LocalDMAKey() uint32 { return mem.LocalKey }

// Dealloc ends the domain. It fails with ErrBusy while regions, windows, shared
// receive queues or queue pairs of it exist.
func (pd *PD) Dealloc() error {
	users, first := pd.life.end()
	if users > 0 {
		return fmt.Errorf("%w: the protection domain has %d objects", ErrBusy, users)
	}
	if first {
		pd.dev.nPD.Add(-1)
		pd.dev.life.release()
	}
	return nil
}
