package rdmamsg

import (
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"softiser/rdma"
)

// Config of a Device. Zero fields mean the default beside them.
type Config struct {
	RDMA rdma.DeviceConfig
	// MaxReceives bounds the receive buffers that the layers above may hold, for all
	// connections together; 16384. They take their memory once traffic has needed
	// them. Half as many again are for what is just arriving.
	MaxReceives int
	// RecvLen and SendLen are how long the messages are that may arrive and that are
	// usually sent, bytes.
	RecvLen, SendLen int
}

// Device is the RDMA side of a process. It is safe for concurrent use.
type Device struct {
	dev     *rdma.Device
	pd      *rdma.PD
	srq     *rdma.SRQ
	max     int // receive buffers
	recvLen int
	sends   sendBuffers

	mu      sync.Mutex // guards growth and registration
	chunks  []*chunk   // same as published
	table   atomic.Pointer[[]*chunk]
	regions atomic.Pointer[[]region]

	out   atomic.Int64 // receive buffers that the layers above hold
	links atomic.Int64
}

// region is registered memory.
type region struct {
	lo, hi uintptr
	mr     *rdma.MR
	key    uint32
}

// Open makes a device.
func Open(cfg Config) (*Device, error) {
	if cfg.MaxReceives == 0 {
		cfg.MaxReceives = 16384
	}
	dev, err := rdma.Open(&cfg.RDMA)
	if err != nil {
		return nil, err
	}
	d := &Device{dev: dev, max: max(cfg.MaxReceives, chunkLen), recvLen: cfg.RecvLen, sends: sendBuffers{size: cfg.SendLen}}
	d.max += d.max / 2 &^ (chunkLen - 1)
	d.regions.Store(&[]region{})
	d.table.Store(&[]*chunk{})
	if d.pd, err = dev.AllocPD(); err == nil {
		d.srq, err = d.pd.CreateSRQ(rdma.SRQConfig{MaxRecv: d.max, MaxSGE: 1})
	}
	if err == nil {
		err = d.refill()
	}
	if err != nil {
		_ = d.Close()
		return nil, err
	}
	return d, nil
}

// RDMA returns the device below.
func (d *Device) RDMA() *rdma.Device { return d.dev }

// ReceivesOut returns how many receive buffers hold messages that have not been
// given back.
func (d *Device) ReceivesOut() int64 { return d.out.Load() }

// Close ends the device. It fails while links, registrations or send buffers are in use.
func (d *Device) Close() error {
	if n := d.links.Load(); n > 0 {
		return fmt.Errorf("%w: the device has %d connections", rdma.ErrBusy, n)
	}
	if n := d.sends.out.Load(); n > 0 {
		return fmt.Errorf("%w: %d send buffers are in use", rdma.ErrBusy, n)
	}
	if d.srq != nil {
		if err := d.srq.Close(); err != nil {
			return err
		}
	}
	if d.pd != nil {
		if err := d.pd.Dealloc(); err != nil {
			return err
		}
	}
	return d.dev.Close()
}

// Register makes mem, usually the mapping of a volume, registered memory: data in
// it travels under its own key, and takes no registration per command. release
// ends it; no transfer may use mem by then.
func (d *Device) Register(mem []byte) (release func() error, err error) {
	mr, err := d.pd.RegMR(mem, rdma.AccessLocalWrite)
	if err != nil {
		return nil, err
	}
	lo := uintptr(unsafe.Pointer(unsafe.SliceData(mem)))
	r := region{lo: lo, hi: lo + uintptr(len(mem)), mr: mr, key: mr.LKey()}
	d.mu.Lock()
	defer d.mu.Unlock()
	t := append(append([]region(nil), *d.regions.Load()...), r)
	d.regions.Store(&t)
	return func() error {
		d.mu.Lock()
		defer d.mu.Unlock()
		var t []region
		for _, o := range *d.regions.Load() {
			if o.mr != mr {
				t = append(t, o)
			}
		}
		d.regions.Store(&t)
		return mr.Dereg()
	}, nil
}

// key returns the local key for memory: that of the region it lies in, or the
// one for any memory of this process.
func (d *Device) key(mem []byte) uint32 {
	lo := uintptr(unsafe.Pointer(unsafe.SliceData(mem)))
	for i, t := 0, *d.regions.Load(); i < len(t); i++ {
		if r := &t[i]; lo >= r.lo && lo < r.hi && uintptr(len(mem)) <= r.hi-lo {
			return r.key
		}
	}
	return d.pd.LocalDMAKey()
}
