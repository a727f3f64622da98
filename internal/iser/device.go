package iser

import (
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"softiser/internal/iscsi"
	"softiser/rdma"
)

// RecvDataLen is how much data fits a receive buffer behind the headers: what
// login needs, and TargetRecvDataSegmentLength afterwards.
const RecvDataLen = 8192

const recvBufLen = HeaderLen + iscsi.BHSLen + RecvDataLen

// Receive buffers are posted in chunks: the first when the device is opened, the
// next whenever fewer than lowWater are left.
const (
	chunkLen = 64
	lowWater = 48
)

// Config of a Device. Zero fields mean the default beside them.
type Config struct {
	RDMA rdma.DeviceConfig
	// MaxReceives bounds the receive buffers that the upper layers may hold, for all
	// connections together; 16384. They take 8 KiB each, once traffic has needed
	// them. Half as many again are for what is just arriving.
	MaxReceives int
}

// Device is the RDMA side of a process. It is safe for concurrent use.
type Device struct {
	dev *rdma.Device
	pd  *rdma.PD
	srq *rdma.SRQ
	max int // receive buffers

	mu      sync.Mutex // guards growth and registration
	chunks  []*chunk   // same as published
	table   atomic.Pointer[[]*chunk]
	regions atomic.Pointer[[]region]

	out   atomic.Int64 // receive buffers that the upper layers hold
	conns atomic.Int64
}

// chunk is a piece of memory cut into receive buffers. Its pages are touched
// only when a buffer is used.
type chunk struct {
	mem  []byte
	bufs [chunkLen]recvBuf
}

// recvBuf is one receive buffer and the PDU that may be in it.
type recvBuf struct {
	pdu     iscsi.PDU
	d       *Device
	id      uint64
	sgl     [1]rdma.SGE
	conn    *Conn // while it holds a PDU
	recycle func(*iscsi.PDU)
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
		return nil, fmt.Errorf("iser: %w", err)
	}
	d := &Device{dev: dev, max: max(cfg.MaxReceives, chunkLen)}
	d.max += d.max / 2 &^ (chunkLen - 1)
	d.regions.Store(&[]region{})
	d.table.Store(&[]*chunk{})
	if d.pd, err = dev.AllocPD(); err == nil {
		d.srq, err = d.pd.CreateSRQ(rdma.SRQConfig{MaxRecv: d.max, MaxSGE: 1})
	}
	if err == nil {
		err = d.grow()
	}
	if err != nil {
		_ = d.Close()
		return nil, fmt.Errorf("iser: %w", err)
	}
	return d, nil
}

// RDMA returns the device below.
func (d *Device) RDMA() *rdma.Device { return d.dev }

// ReceivesOut returns how many receive buffers hold PDUs that have not been
// released.
func (d *Device) ReceivesOut() int64 { return d.out.Load() }

// Close ends the device. It fails while connections or registrations exist.
func (d *Device) Close() error {
	if n := d.conns.Load(); n > 0 {
		return fmt.Errorf("iser: %w: the device has %d connections", rdma.ErrBusy, n)
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

// grow posts another chunk of receive buffers and arms the next low-water event.
func (d *Device) grow() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if (len(d.chunks)+1)*chunkLen > d.max {
		return fmt.Errorf("iser: %w: there are %d receive buffers already", rdma.ErrLimit, d.max)
	}
	c := &chunk{mem: make([]byte, chunkLen*recvBufLen)}
	base := uint64(len(d.chunks) * chunkLen)
	d.chunks = append(d.chunks, c)
	t := append([]*chunk(nil), d.chunks...)
	d.table.Store(&t)
	for i := range c.bufs {
		b := &c.bufs[i]
		b.d, b.id = d, base+uint64(i)
		b.sgl[0] = rdma.SGE{Mem: c.mem[i*recvBufLen : (i+1)*recvBufLen : (i+1)*recvBufLen], LKey: d.pd.LocalDMAKey()}
		b.recycle = b.free
		if err := b.post(); err != nil {
			return err
		}
	}
	d.srq.Arm(lowWater)
	return nil
}

// fewReceives is how many receive buffers every connection may hold in any case.
const fewReceives = 4

// scarce reports whether a connection must leave the receive buffer that it has just
// filled: out of them are held, more than a third, and kept of these by this
// connection, which is more than its share. Those that hold no more than theirs find
// a buffer whatever the others do.
func (d *Device) scarce(out, kept int64) bool {
	third := int64(d.max) / 3
	return out > third && kept > max(third/max(d.conns.Load(), 1), fewReceives)
}

// buf finds a receive buffer by the ID of its work request.
func (d *Device) buf(id uint64) *recvBuf {
	t := *d.table.Load()
	return &t[id/chunkLen].bufs[id%chunkLen]
}

func (b *recvBuf) post() error { return b.d.srq.PostRecv(rdma.RecvWR{ID: b.id, SGL: b.sgl[:]}) }

// free is the Recycle of the PDU in the buffer: the buffer can receive again.
func (b *recvBuf) free(*iscsi.PDU) {
	b.d.out.Add(-1)
	b.conn.kept.Add(-1)
	b.conn = nil
	b.pdu.Data, b.pdu.AHS, b.pdu.Bad = nil, nil, nil
	// The queue has room for every buffer there is.
	_ = b.post()
}

// Register makes mem, usually the mapping of a volume, registered memory: data in
// it travels under its own key, and takes no registration per command. release
// ends it; no transfer may use mem by then.
func (d *Device) Register(mem []byte) (release func() error, err error) {
	mr, err := d.pd.RegMR(mem, rdma.AccessLocalWrite)
	if err != nil {
		return nil, fmt.Errorf("iser: %w", err)
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
