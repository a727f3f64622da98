package ublk

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"softiser/blockdev"
	"softiser/initiator/blockio"
	"softiser/internal/uring"
)

// LUN is the part of a blockio.Volume that a device needs.
type LUN interface {
	// SubmitBatch starts requests; each one's Done is called exactly once.
	SubmitBatch([]*blockio.Request)
	Info() blockdev.Info
}

// Config describes the /dev/ublkbN to be made.
type Config struct {
	Index    int // N; <0: any free one
	LUN      LUN
	Client   *blockio.Flusher // whose requests come from the device; nil: nobody's in particular
	ReadOnly bool
	Queues   int    // hardware queues; the driver gives one per processor at most
	Depth    int    // requests of one queue under way at once, up to MaxDepth
	Mark     uint64 // by which Find knows the device again
	Recover  bool   // the device waits for a new server when this process is killed
}

// Device is a /dev/ublkbN that this process serves.
type Device struct {
	Path string
	// Failed gets why a queue has ended before Close: the device is of no use then.
	Failed <-chan error

	ctl    *controller
	dev    uint32
	info   info
	char   *os.File
	rings  []*uring.Ring
	wakes  []counter
	queues []*queue
	memory [][]byte
	lun    LUN
	client *blockio.Flusher // whose requests come here
	runs   sync.WaitGroup   // queues
	failed chan error

	stopping sync.Once
	stopped  error  // what the driver has said to that
	part     string // what partOf said before
}

// How many requests of one queue are under way at once.
const (
	MaxDepth     = maxDepth
	DefaultDepth = 128
)

// requestSize is what one request moves at most, bytes: the memory of a tag.
const requestSize = 1 << 20

// Paths of the devices.
const (
	blockPath = "/dev/ublkb"
	charPath  = "/dev/ublkc"
)

// ErrNoResize says that the driver cannot change the size of a device.
var ErrNoResize = errors.New("the kernel's ublk driver cannot change the size of a device (6.16 can); detach and attach again")

// Times that the driver may take.
const (
	nodeLimit    = 10 * time.Second // until a node appears
	quiesceLimit = 30 * time.Second // until a device knows that its server is gone; 6.1 looks every 5 s
)

// Add makes a block device and serves it until Close.
func Add(cfg Config) (*Device, error) {
	p, err := parametersOf(cfg.LUN.Info(), cfg.ReadOnly)
	if err != nil {
		return nil, err
	}
	d, err := open(cfg.LUN, cfg.Client)
	if err != nil {
		return nil, err
	}
	d.dev = anyDevice
	if cfg.Index >= 0 {
		d.dev = uint32(cfg.Index)
	}
	d.info = info{
		queues: uint16(cfg.Queues), depth: uint16(cfg.Depth), maxIO: requestSize, dev: d.dev,
		mark: cfg.Mark,
	}
	if cfg.Recover {
		d.info.features = featureRecovery | featureReissue
	}
	if d.ctl.encoded() {
		d.info.features |= featureEncoded | d.ctl.features&featureUpdateSize
	}
	if err := d.add(); err != nil {
		d.ctl.close()
		return nil, err
	}
	if cfg.Recover && d.info.features&featureReissue == 0 {
		return nil, errors.Join(errors.New("ublk: the driver knows no user recovery (kernel 6.1 or later is needed)"), d.Close(0))
	}
	if err := d.start(&p); err != nil {
		return nil, errors.Join(err, d.Close(0))
	}
	return d, nil
}

// add has the driver make the device as d.info wants it, and puts there what it has made.
func (d *Device) add() error {
	b := make([]byte, infoSize)
	d.info.put(b)
	switch err := d.ctl.do(cmdAddDev, d.dev, 0, b); {
	case errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EACCES):
		return fmt.Errorf("ublk: making a block device needs CAP_SYS_ADMIN (run as root, or use the unix socket): %w", err)
	case errors.Is(err, syscall.EEXIST):
		return fmt.Errorf("ublk: %s%d is in use: %w", blockPath, d.dev, err)
	case err != nil:
		return fmt.Errorf("ublk: add a device: %w", err)
	}
	d.info.get(b)
	d.dev = d.info.dev
	return nil
}

// start makes a device that was added a block device.
func (d *Device) start(p *params) error {
	b := make([]byte, paramsSize)
	p.put(b)
	if err := d.ctl.do(cmdSetParams, d.dev, 0, b); err != nil {
		return fmt.Errorf("ublk: parameters of a device: %w", err)
	}
	if err := d.serve(); err != nil {
		return err
	}
	if err := d.ctl.do(cmdStartDev, d.dev, uint64(os.Getpid()), nil); err != nil {
		return fmt.Errorf("ublk: start %s: %w", d.Path, err)
	}
	return d.waitReady()
}

// Recover takes over the device at path, whose server is gone, and serves it until Close.
// Requests that were under way come once more. It is recovered whole, however long that takes, or, if ctx ends before that
// has begun, not at all: a device that is half recovered nobody can take. client and readOnly are as in Config: the driver
// does not change the latter any more.
func Recover(ctx context.Context, path string, lun LUN, client *blockio.Flusher, readOnly bool) (*Device, error) {
	dev, err := number(path, blockPath)
	if err != nil {
		return nil, err
	}
	d, err := open(lun, client)
	if err != nil {
		return nil, err
	}
	d.dev = dev
	if err := d.takeOver(ctx, path, readOnly); err != nil {
		d.ctl.close()
		return nil, err
	}
	err = d.serve()
	if err == nil {
		if err = d.ctl.do(cmdEndRecovery, dev, uint64(os.Getpid()), nil); err != nil {
			err = fmt.Errorf("ublk: end the recovery of %s: %w", path, err)
		}
	}
	if err == nil {
		if err = d.Resize(lun.Info().Size); errors.Is(err, ErrNoResize) {
			err = nil
		}
	}
	if err != nil {
		// Half taken over it has no server and nobody who could take it: it ends.
		return nil, errors.Join(err, d.Close(0))
	}
	return d, nil
}

// takeOver has the driver give a device to this process. Until it does the device is left as
// it is.
func (d *Device) takeOver(ctx context.Context, path string, readOnly bool) (err error) {
	if d.info, err = d.ctl.info(d.dev); err != nil {
		return fmt.Errorf("ublk: %s: %w", path, err)
	}
	if d.info.features&featureReissue == 0 || d.info.maxIO != requestSize {
		return fmt.Errorf("ublk: %s was not made by this program", path)
	}
	if err := fits(path, "/sys/block/"+filepath.Base(path), d.lun.Info(), readOnly); err != nil {
		return err
	}
	err = startRecovery(ctx, func() error { return d.ctl.do(cmdStartRecovery, d.dev, 0, nil) })
	if errors.Is(err, syscall.EBUSY) {
		return fmt.Errorf("ublk: recover %s: the driver holds that process %d serves it: %w", path, d.info.pid, err)
	}
	if err != nil {
		return fmt.Errorf("ublk: recover %s: %w", path, err)
	}
	return nil
}

// startRecovery has start begin, once the driver has seen that the server is gone. When ctx ends before, it has not begun.
func startRecovery(ctx context.Context, start func() error) error {
	for end := time.Now().Add(quiesceLimit); ; {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := start(); !errors.Is(err, syscall.EBUSY) || time.Now().After(end) {
			return err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// fits reports why a volume cannot be what is behind an existing device, of which sys tells.
func fits(path, sys string, i blockdev.Info, readOnly bool) error {
	b, err := os.ReadFile(sys + "/queue/logical_block_size")
	if err != nil {
		return fmt.Errorf("ublk: %s: %w", path, err)
	}
	if n, _ := strconv.Atoi(strings.TrimSpace(string(b))); n != i.BlockSize {
		return fmt.Errorf("ublk: %s has blocks of %d bytes, the volume has %d", path, n, i.BlockSize)
	}
	if size := sectorsOf(sys) * sector; size > i.Size {
		return fmt.Errorf("ublk: %s has %d bytes, the volume has %d", path, size, i.Size)
	}
	if b, err = os.ReadFile(sys + "/ro"); err != nil {
		return fmt.Errorf("ublk: %s: %w", path, err)
	}
	if readOnly && strings.TrimSpace(string(b)) == "0" { // who takes it for read-only does not flush what it holds
		return fmt.Errorf("ublk: %s is writable, and holds what has been written: attach it without --read-only and detach it, then attach the volume with --read-only", path)
	}
	return nil
}

// sectorsOf is the size of the block device of which sys tells; 0 where there is none.
func sectorsOf(sys string) int64 {
	b, _ := os.ReadFile(sys + "/size")
	n, _ := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	return n
}

// parametersOf are the limits of a device for a volume.
func parametersOf(i blockdev.Info, readOnly bool) (p params, err error) {
	bs := max(i.BlockSize, sector)
	if bs > os.Getpagesize() || bs&(bs-1) != 0 {
		return p, fmt.Errorf("ublk: the volume has blocks of %d bytes; the driver takes 512 to %d", bs, os.Getpagesize())
	}
	physical := max(bs, min(i.PhysBlockSize, requestSize))
	if physical&(physical-1) != 0 {
		physical = bs
	}
	log := func(n int) uint8 { return uint8(bits.TrailingZeros(uint(n))) }
	// A discard or a zeroing moves no payload; the session cuts it to what the target takes.
	const most = 1 << 30 / sector
	p = params{
		attrs: attrCache | attrFUA, logical: log(bs), physical: log(physical), opt: log(physical), ioMin: log(physical),
		maxSectors: requestSize / sector, sectors: uint64(i.Size) / sector,
		granularity: uint32(max(i.DiscardAlign, bs)), maxZeroes: most,
	}
	if i.Discard {
		p.maxDiscard = most
	}
	if i.Rotational {
		p.attrs |= attrRotational
	}
	if readOnly || i.ReadOnly {
		p.attrs |= attrReadOnly
		p.maxZeroes, p.maxDiscard = 0, 0
	}
	return p, nil
}

func open(lun LUN, client *blockio.Flusher) (*Device, error) {
	c, err := openControl()
	if err != nil {
		return nil, err
	}
	failed := make(chan error, 1)
	return &Device{ctl: c, lun: lun, client: client, failed: failed, Failed: failed}, nil
}

// serve opens the character device and starts the queues.
func (d *Device) serve() (err error) {
	d.Path = blockPath + strconv.Itoa(int(d.dev))
	if d.char, err = openNode(charPath + strconv.Itoa(int(d.dev))); err != nil {
		return err
	}
	started := make(chan error)
	for id := range d.info.queues {
		q, err := d.newQueue(id)
		if err != nil {
			return err
		}
		q.user = d.client
		d.runs.Go(func() {
			if err := q.run(started); err != nil {
				select {
				case d.failed <- err:
				default:
				}
			}
		})
		if err := <-started; err != nil {
			return err
		}
	}
	return nil
}

// newQueue gives a queue its memory and its ring.
func (d *Device) newQueue(id uint16) (*queue, error) {
	depth, page := int(d.info.depth), os.Getpagesize()
	round := func(n int) int { return (n + page - 1) / page * page }
	desc, err := unix.Mmap(int(d.char.Fd()), int64(id)*int64(round(maxDepth*descSize)), round(depth*descSize), unix.PROT_READ, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return nil, fmt.Errorf("ublk: descriptors of queue %d: %w", id, err)
	}
	d.memory = append(d.memory, desc)
	memory, err := allocate(depth*requestSize + page) // the last page is the wake counter's
	if err != nil {
		return nil, err
	}
	d.memory = append(d.memory, memory)
	r, err := uring.New(depth + 1)
	if err != nil {
		return nil, fmt.Errorf("ublk: %w", err)
	}
	d.rings = append(d.rings, r)
	wake, err := newCounter(memory[depth*requestSize:][:8])
	if err != nil {
		return nil, fmt.Errorf("ublk: %w", err)
	}
	d.wakes = append(d.wakes, wake)
	q := &queue{id: id, lun: d.lun, fd: int32(d.char.Fd()), fetch: ioFetch, fetC: ioCommit, ring: r, wake: wake, desc: desc}
	if d.info.features&featureEncoded != 0 {
		q.fetch, q.fetC = encodeIO(ioFetch), encodeIO(ioCommit)
	}
	q.init(depth, requestSize, memory)
	d.queues = append(d.queues, q)
	return q, nil
}

// openNode opens a device whose node may still be on its way.
func openNode(path string) (*os.File, error) {
	for end := time.Now().Add(nodeLimit); ; time.Sleep(10 * time.Millisecond) {
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err == nil {
			return os.NewFile(uintptr(fd), path), nil
		}
		if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINTR) || time.Now().After(end) {
			return nil, fmt.Errorf("ublk: open %s: %w", path, err)
		}
	}
}

// waitReady waits until the block device's node is there.
func (d *Device) waitReady() error {
	for end := time.Now().Add(nodeLimit); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(d.Path); err == nil {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("ublk: %s did not appear within %v (is udev running?)", d.Path, nodeLimit)
		}
	}
}

// Resize tells the driver a new size.
func (d *Device) Resize(size int64) error {
	if d.info.features&featureUpdateSize == 0 {
		return fmt.Errorf("%s: %w", d.Path, ErrNoResize)
	}
	if err := d.ctl.do(cmdUpdateSize, d.dev, uint64(size)/sector, nil); err != nil {
		return fmt.Errorf("ublk: resize of %s: %w", d.Path, err)
	}
	return nil
}

// Hold keeps what comes from now on from the volume, until Resume. The driver gives it to
// the next server once more, should this process end meanwhile.
func (d *Device) Hold() {
	for _, q := range d.queues {
		q.mu.Lock()
		q.resting = true
		q.mu.Unlock()
	}
}

// Rest waits for what the volume has, until ctx is done, and returns how much there is all the
// same. Preconditions: Hold, or nothing comes any more.
func (d *Device) Rest(ctx context.Context) (under int) {
	for {
		under = 0
		for _, q := range d.queues {
			q.mu.Lock()
			under += q.under
			q.mu.Unlock()
		}
		if under == 0 || ctx.Err() != nil {
			return under
		}
		time.Sleep(restLook)
	}
}

// restLook is how often Rest looks.
const restLook = 500 * time.Microsecond

// Resume ends what Hold has begun.
func (d *Device) Resume() {
	for _, q := range d.queues {
		q.resume()
	}
}

// Stop has the driver finish the requests that are under way and fail those that come later. It
// returns when the volume has none any more, be that with an error: one whose target is away may
// keep them until it is closed. What others still hold of the device in their page cache is lost;
// see nbd.WriteBack.
func (d *Device) Stop() error {
	d.stopping.Do(func() {
		d.part = partOf(blockPath + strconv.Itoa(int(d.dev)))
		if err := d.ctl.do(cmdStopDev, d.dev, 0, nil); err != nil {
			d.stopped = fmt.Errorf("ublk: stop %s%d: %w", blockPath, d.dev, err)
		}
		d.runs.Wait() // the driver has given up all tags, or a queue has failed before
		d.Rest(context.Background())
	})
	return d.stopped
}

// Close ends the device behind Stop. Where the driver removes one only once nobody has it open,
// patience bounds how long that is waited for.
func (d *Device) Close(patience time.Duration) error {
	errs := []error{d.Stop()}
	for _, r := range d.rings {
		errs = append(errs, r.Close())
	}
	for _, w := range d.wakes {
		errs = append(errs, w.close())
	}
	for _, m := range d.memory {
		errs = append(errs, unix.Munmap(m))
	}
	if d.char != nil {
		errs = append(errs, d.char.Close())
	}
	errs = append(errs, d.ctl.remove(d.dev, d.part, patience))
	d.ctl.close()
	return errors.Join(errs...)
}
