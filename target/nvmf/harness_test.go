package nvmf_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"softiser/blockdev"
	"softiser/blockdev/mem"
	"softiser/internal/crc32c"
	"softiser/internal/nvme"
	"softiser/internal/nvmetcp"
	"softiser/target"
	"softiser/target/nvmf"
)

const (
	subNQN  = "nqn.2026-11.softiser:disk0"
	hostNQN = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-00000000000a"
)

// rig is a target with one subsystem.
type rig struct {
	t    testing.TB
	srv  *target.Server
	addr string
	vol  blockdev.Device
	from *net.TCPAddr // where hosts connect from; nil: as the system likes
}

func newMem(t testing.TB, size int64) blockdev.Device {
	t.Helper()
	d, err := mem.Open(mem.Config{Name: t.Name(), Size: size})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// open serves a subsystem; change may alter the configurations.
func open(t testing.TB, change func(*target.Config, *nvmf.SubsystemConfig)) *rig {
	t.Helper()
	r := &rig{t: t, vol: newMem(t, 16<<20)}
	tc := target.Config{Portals: []target.Portal{{Listen: "127.0.0.1:0"}}}
	sc := nvmf.SubsystemConfig{NQN: subNQN, Namespaces: []nvmf.NamespaceConfig{{NSID: 1, Volume: r.vol}}}
	if change != nil {
		change(&tc, &sc)
	}
	var err error
	if r.srv, err = target.New(tc); err != nil {
		t.Fatal(err)
	}
	if err := r.srv.AddSubsystem(sc); err != nil {
		t.Fatal(err)
	}
	if err := r.srv.Listen(); err != nil {
		t.Fatal(err)
	}
	r.addr = r.srv.Addrs()[0]
	served := make(chan error, 1)
	go func() { served <- r.srv.Serve(context.Background()) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		r.srv.Shutdown(ctx)
		if err := <-served; err != nil && !errors.Is(err, target.ErrServerClosed) {
			t.Error(err)
		}
	})
	return r
}

// queue is a host's queue. One goroutine reads; any number may have commands.
type queue struct {
	t       testing.TB
	nc      net.Conn
	digests nvmetcp.Digests
	wmu     sync.Mutex
	mu      sync.Mutex
	cids    uint16
	wait    map[uint16]*command
	err     error
	done    chan struct{}

	asked chan struct{} // a silent command's data has been asked for
}

// command is one on its way.
type command struct {
	cid     uint16
	in, out []byte
	silent  bool         // the host does not send the data that it is asked for
	r2t     nvmetcp.Data // what it was asked for; written before queue.asked
	got     int
	cqe     nvme.CQE
	done    chan struct{}
}

// terminated is a TermReq of the controller.
type terminated struct{ nvmetcp.TermReq }

func (t *terminated) Error() string { return fmt.Sprintf("C2HTermReq: %s at %d", t.FES, t.FEI) }

var errGone = errors.New("the controller has closed the connection")

// dial opens a connection as far as ICResp.
func dial(t testing.TB, addr string) *queue {
	t.Helper()
	return dialFrom(t, nil, addr)
}

// dialFrom is dial from a local address; nil: as the system likes.
func dialFrom(t testing.TB, from *net.TCPAddr, addr string) *queue {
	t.Helper()
	var d net.Dialer
	if from != nil {
		d.LocalAddr = from
	}
	nc, err := d.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	return begin(t, nc)
}

// begin goes on with a connection as far as ICResp.
func begin(t testing.TB, nc net.Conn) *queue {
	t.Helper()
	return beginWith(t, nc, 0)
}

// beginWith is begin with digests.
func beginWith(t testing.TB, nc net.Conn, d nvmetcp.Digests) *queue {
	t.Helper()
	if _, err := nc.Write((&nvmetcp.ICReq{Digests: d}).AppendTo(nil)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, nvmetcp.ICLen)
	if _, err := io.ReadFull(nc, b); err != nil {
		t.Fatal(err)
	}
	if _, f := nvmetcp.ParseICResp(b); f != nil {
		t.Fatal(f)
	}
	q := &queue{t: t, nc: nc, digests: d, wait: map[uint16]*command{}, done: make(chan struct{}), asked: make(chan struct{}, 16)}
	go q.read()
	t.Cleanup(q.close)
	return q
}

func (q *queue) close() {
	q.nc.Close()
	<-q.done
}

func (q *queue) read() {
	defer close(q.done)
	err := q.readAll()
	q.mu.Lock()
	defer q.mu.Unlock()
	q.err = fmt.Errorf("%w: %w", errGone, err)
	for _, c := range q.wait {
		close(c.done)
	}
	q.wait = nil
}

func (q *queue) readAll() error {
	for {
		b := make([]byte, nvmetcp.CHLen)
		if _, err := io.ReadFull(q.nc, b); err != nil {
			return err
		}
		lay, f := (*nvmetcp.CH)(b).Check(&nvmetcp.Limits{MaxData: 16 << 20, Digests: q.digests})
		if f != nil {
			return f
		}
		b = append(b, make([]byte, int((*nvmetcp.CH)(b).PLen())-len(b))...)
		if _, err := io.ReadFull(q.nc, b[nvmetcp.CHLen:]); err != nil {
			return err
		}
		if lay.Digest > 0 && binary.LittleEndian.Uint32(b[lay.HLen:]) != crc32c.Update(0, b[:lay.HLen]) ||
			lay.DDigest > 0 && binary.LittleEndian.Uint32(b[lay.PDO+int(lay.Data):]) != crc32c.Update(0, b[lay.PDO:][:lay.Data]) {
			return fmt.Errorf("a digest of %x is wrong", b[:lay.HLen])
		}
		switch (*nvmetcp.CH)(b).Type() {
		case nvmetcp.TypeC2HData:
			d := (*nvmetcp.Data)(b)
			c := q.find(d.CCCID())
			if c == nil || int(d.Offset())+int(d.Length()) > len(c.in) {
				return fmt.Errorf("C2HData %x for no command", b[:24])
			}
			c.got += copy(c.in[d.Offset():], b[lay.PDO:][:lay.Data])
		case nvmetcp.TypeR2T:
			d := (*nvmetcp.Data)(b)
			c := q.find(d.CCCID())
			if c == nil {
				return fmt.Errorf("R2T %x for no command", b)
			}
			if c.silent {
				c.r2t = *d
				q.asked <- struct{}{}
				continue
			}
			var h nvmetcp.Data
			h.Set(nvmetcp.TypeH2CData, nvmetcp.FlagLast, q.digests, d.CCCID(), d.TTAG(), d.Offset(), d.Length(), 0)
			q.send(h[:], c.out[d.Offset():][:d.Length()])
		case nvmetcp.TypeCapsuleResp:
			e := (*nvmetcp.CapsuleResp)(b).CQE()
			q.mu.Lock()
			c := q.wait[e.CID()]
			delete(q.wait, e.CID())
			q.mu.Unlock()
			if c == nil {
				return fmt.Errorf("response %x to no command", b)
			}
			c.cqe = *e
			close(c.done)
		case nvmetcp.TypeC2HTermReq:
			term, err := nvmetcp.ParseTermReq(b)
			if err != nil {
				return err
			}
			return &terminated{term}
		default:
			return fmt.Errorf("%s: %x", (*nvmetcp.CH)(b).Type(), b)
		}
	}
}

func (q *queue) find(cid uint16) *command {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.wait[cid]
}

func (q *queue) send(header, data []byte) error {
	q.wmu.Lock()
	defer q.wmu.Unlock()
	_, err := q.nc.Write(withDigests(header, data))
	return err
}

// withDigests makes a whole PDU of a header, which says whether it has digests, and its data.
func withDigests(header, data []byte) []byte {
	f := (*nvmetcp.CH)(header).Flags()
	b := append([]byte(nil), header...)
	if f&nvmetcp.FlagHDGST != 0 {
		b = binary.LittleEndian.AppendUint32(b, crc32c.Update(0, header))
	}
	b = append(b, data...)
	if len(data) > 0 && f&nvmetcp.FlagDDGST != 0 {
		b = binary.LittleEndian.AppendUint32(b, crc32c.Update(0, data))
	}
	return b
}

// inline is the longest data that goes in the capsule.
const inline = 8192

// start sends a command whose SQE is filled but for its identifier and its SGL. in is
// filled by the controller, out fetched.
func (q *queue) start(s nvme.SQE, in, out []byte) *command {
	return q.begin(s, &command{in: in, out: out, done: make(chan struct{})})
}

// startSilent is start for a host that says that it has data and does not send it.
func (q *queue) startSilent(s nvme.SQE, out []byte) *command {
	return q.begin(s, &command{out: out, silent: true, done: make(chan struct{})})
}

// deliver sends what a silent command's data was asked for after all.
func (q *queue) deliver(c *command) {
	d := &c.r2t
	var h nvmetcp.Data
	h.Set(nvmetcp.TypeH2CData, nvmetcp.FlagLast, q.digests, d.CCCID(), d.TTAG(), d.Offset(), d.Length(), 0)
	q.send(h[:], c.out[d.Offset():][:d.Length()])
}

func (q *queue) begin(s nvme.SQE, c *command) *command {
	in, out := c.in, c.out
	q.mu.Lock()
	if q.err != nil {
		q.mu.Unlock()
		close(c.done)
		return c
	}
	q.cids++
	s.SetCID(q.cids)
	c.cid = q.cids
	q.wait[q.cids] = c
	q.mu.Unlock()
	var k nvmetcp.CapsuleCmd
	capsule := out
	if len(out) > inline {
		capsule = nil
	}
	if len(capsule) > 0 {
		s.SGL().SetBlock(nvme.SGLInCapsule, 0, uint32(len(capsule)))
	} else {
		s.SGL().SetBlock(nvme.SGLTransport, 0, uint32(max(len(in), len(out))))
	}
	*k.SQE() = s
	k.SetHeader(q.digests, uint32(len(capsule)), 0)
	q.send(k[:], capsule)
	return c
}

// result returns the answer to a command.
func (q *queue) result(c *command) (*nvme.CQE, error) {
	<-c.done
	q.mu.Lock()
	defer q.mu.Unlock()
	if c.cqe == (nvme.CQE{}) && q.err != nil {
		return nil, q.err
	}
	return &c.cqe, nil
}

// do carries a command out; its status is the error, if it is none of success.
func (q *queue) do(s nvme.SQE, in, out []byte) (*nvme.CQE, error) {
	c := q.start(s, in, out)
	e, err := q.result(c)
	if err != nil {
		return nil, err
	}
	if st := e.Status(); !st.OK() {
		return e, st
	}
	if c.got != len(in) {
		return e, fmt.Errorf("%d bytes of %d came", c.got, len(in))
	}
	return e, nil
}

// connect makes the connection a queue.
func (q *queue) connect(id uint16, d nvme.ConnectData, keepAlive time.Duration) (*nvme.CQE, error) {
	var s nvme.SQE
	c := s.NewConnect()
	c.SetQID(id)
	c.SetSQSize(31)
	c.SetKeepAlive(keepAlive)
	return q.do(s, nil, d.AppendTo(nil))
}

// host is a host with a controller that is enabled.
type host struct {
	*queue // admin
	r      *rig
	data   nvme.ConnectData
	io     []*queue
}

// attach connects a host, with n I/O queues.
func (r *rig) attach(nqn string, id byte, n int) *host {
	r.t.Helper()
	return r.attachTo(subNQN, nqn, id, n)
}

func (r *rig) attachTo(sub, nqn string, id byte, n int) *host {
	r.t.Helper()
	h := &host{queue: dialFrom(r.t, r.from, r.addr), r: r, data: nvme.ConnectData{HostID: nvme.HostID{15: id}, CntlID: nvme.CntlIDDynamic, Subsystem: sub, Host: nqn}}
	e, err := h.connect(0, h.data, time.Minute)
	if err != nil {
		r.t.Fatal(err)
	}
	h.data.CntlID = nvme.ConnectResult(e.DW0()).CntlID()
	h.enable()
	for i := range n {
		q := dialFrom(r.t, r.from, r.addr)
		if _, err := q.connect(uint16(i+1), h.data, 0); err != nil {
			r.t.Fatal(err)
		}
		h.io = append(h.io, q)
	}
	return h
}

func (h *host) enable() {
	h.t.Helper()
	var s nvme.SQE
	s.NewPropertySet(nvme.PropCC, uint64(nvme.NewConfig(nvme.CommandSetAll, true)))
	if _, err := h.do(s, nil, nil); err != nil {
		h.t.Fatal(err)
	}
	if st := nvme.CtrlStatus(h.property(nvme.PropCSTS)); !st.Ready() {
		h.t.Fatalf("CSTS %x", st)
	}
}

func (h *host) property(p nvme.PropertyOffset) uint64 {
	h.t.Helper()
	var s nvme.SQE
	s.NewPropertyGet(p)
	e, err := h.do(s, nil, nil)
	if err != nil {
		h.t.Fatal(err)
	}
	return e.Result()
}

func (h *host) identify(c nvme.CNS, nsid uint32) []byte {
	h.t.Helper()
	var s nvme.SQE
	s.NewIdentify(c, nsid)
	b := make([]byte, nvme.IdentifyLen)
	if _, err := h.do(s, b, nil); err != nil {
		h.t.Fatalf("Identify %02x: %v", c, err)
	}
	return b
}

func (h *host) log(id nvme.LogID, n int) []byte {
	h.t.Helper()
	var s nvme.SQE
	s.NewGetLogPage(id, nvme.NSIDAll, 0, uint32(n))
	b := make([]byte, n)
	if _, err := h.do(s, b, nil); err != nil {
		h.t.Fatalf("log page %02x: %v", id, err)
	}
	return b
}

// rw makes a command with a range of blocks.
func rw(op nvme.Opcode, lba uint64, blocks uint32) nvme.SQE {
	var s nvme.SQE
	s.Init(op, 1)
	s.ReadWrite().SetRange(lba, blocks)
	return s
}

func (q *queue) write(lba uint64, p []byte) error {
	_, err := q.do(rw(nvme.OpWrite, lba, uint32(len(p)/512)), nil, p)
	return err
}

func (q *queue) readBlocks(lba uint64, n int) ([]byte, error) {
	p := make([]byte, n)
	_, err := q.do(rw(nvme.OpRead, lba, uint32(n/512)), p, nil)
	return p, err
}

func pattern(n int, seed byte) []byte {
	p := make([]byte, n)
	for i := 0; i+8 <= n; i += 8 {
		binary.LittleEndian.PutUint64(p[i:], uint64(i)*0x9E3779B97F4A7C15+uint64(seed))
	}
	return p
}
