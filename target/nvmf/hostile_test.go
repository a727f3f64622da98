package nvmf_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"softiser/blockdev"
	"softiser/internal/await"
	"softiser/internal/crc32c"
	"softiser/internal/nvme"
	"softiser/internal/nvmetcp"
	"softiser/internal/pcaptest"
	"softiser/target"
	"softiser/target/nvmf"
	"softiser/target/volume"
)

const (
	byNQN  = "nqn.2026-11.softiser:bystander"
	byHost = "nqn.2026-11.softiser:host-beside"
	ioTime = time.Minute // generous: the machine may be loaded
)

// hostileRig is a rig whose server gives peers all the time in the world, so that nothing
// but an answer ends a connection, and whose memory is counted.
func hostileRig(t *testing.T, change func(*target.Config)) *rig {
	t.Helper()
	staging, err := blockdev.NewPool(8 << 20)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // after the server's end
		if out, kept := staging.Out(), staging.Reserved(); out != 0 || kept != 0 {
			t.Errorf("%d bytes of staging memory are out, %d reserved", out, kept)
		}
		if err := staging.Close(); err != nil {
			t.Error(err)
		}
	})
	beside := newMem(t, 1<<20)
	r := open(t, func(c *target.Config, _ *nvmf.SubsystemConfig) {
		c.Timeouts.FirstBytes, c.Timeouts.Login = time.Hour, time.Hour
		c.Staging = staging
		if change != nil {
			change(c)
		}
	})
	if err := r.srv.AddSubsystem(nvmf.SubsystemConfig{
		NQN: byNQN, Hosts: []nvmf.HostRule{{NQN: byHost}}, Namespaces: []nvmf.NamespaceConfig{{NSID: 1, Volume: beside}},
	}); err != nil {
		t.Fatal(err)
	}
	return r
}

// bystander is a host whose verified I/O goes on while others misbehave.
type bystander struct {
	r      *rig
	stop   chan struct{}
	done   chan error
	rounds atomic.Int64
}

func (r *rig) bystander() *bystander {
	r.t.Helper()
	h := r.attachTo(byNQN, byHost, 200, 1)
	b := &bystander{r: r, stop: make(chan struct{}), done: make(chan error, 1)}
	go func() { b.done <- b.work(h) }()
	return b
}

func (b *bystander) work(h *host) error {
	var alive nvme.SQE
	alive.Init(nvme.AdminKeepAlive, 0)
	for n := byte(0); ; n++ {
		select {
		case <-b.stop:
			return nil
		default:
		}
		want := pattern(4096<<(n%5), n) // in the capsule, and by R2T
		lba := uint64(n%8) * 128
		if err := h.io[0].write(lba, want); err != nil {
			return fmt.Errorf("write %d: %w", n, err)
		}
		if got, err := h.io[0].readBlocks(lba, len(want)); err != nil || !bytes.Equal(got, want) {
			return fmt.Errorf("read %d: other data, %w", n, err)
		}
		if _, err := h.do(alive, nil, nil); err != nil {
			return fmt.Errorf("keep alive: %w", err)
		}
		b.rounds.Add(1)
	}
}

// check ends the bystander, who has seen nothing, and waits until all others are gone.
func (b *bystander) check(others int) {
	t := b.r.t
	t.Helper()
	n := b.rounds.Load()
	await.True(t, "the bystander goes on", func() bool { return b.rounds.Load() > n || len(b.done) > 0 })
	close(b.stop)
	if err := <-b.done; err != nil {
		t.Error("the bystander was disturbed: ", err)
	}
	await.True(t, "the controllers of the others have ended", func() bool { return len(b.r.srv.Controllers()) == 1+others })
}

// send gives the server some bytes on a fresh connection, closes its side, and reads until
// the server closes too.
func (r *rig) send(parts ...[]byte) {
	nc, err := net.Dial("tcp", r.addr)
	if err != nil {
		r.t.Error(err)
		return
	}
	defer nc.Close()
	_ = nc.SetDeadline(time.Now().Add(ioTime))
	for _, p := range parts {
		if _, err := nc.Write(p); err != nil {
			return // it has closed already
		}
	}
	_ = nc.(*net.TCPConn).CloseWrite()
	if _, err := io.Copy(io.Discard, nc); os.IsTimeout(err) {
		r.t.Errorf("the server keeps a connection that sent garbage (%d parts)", len(parts))
	}
}

// campaign sends streams, some at a time.
type campaign struct {
	r     *rig
	rng   *rand.Rand
	slots chan struct{}
	wg    sync.WaitGroup
	tried int
}

func (r *rig) campaign(seed uint64) *campaign {
	return &campaign{r: r, rng: rand.New(rand.NewPCG(seed, 1)), slots: make(chan struct{}, 16)}
}

func (c *campaign) try(parts ...[]byte) { c.then(func() {}, parts...) }

func (c *campaign) then(after func(), parts ...[]byte) {
	c.slots <- struct{}{}
	c.wg.Add(1)
	c.tried++
	go func() {
		defer c.wg.Done()
		c.r.send(parts...)
		after()
		<-c.slots
	}()
}

func (c *campaign) random(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(c.rng.Uint32())
	}
	return b
}

// corrupt sends stream again and again, each time with one byte changed, and every third
// time cut off there. fit, if it is there, makes each copy fit first, and returns what is
// to be done when it has been sent.
func (c *campaign) corrupt(stream []byte, step int, fit func(b []byte) (after func())) {
	if *everyByte {
		step = 1
	}
	for at := 0; at < len(stream); at += 1 + c.rng.IntN(2*step-1) {
		bad := bytes.Clone(stream)
		after := func() {}
		if fit != nil {
			after = fit(bad)
		}
		bad[at] ^= byte(1 + c.rng.IntN(255))
		if c.tried%3 == 0 {
			bad = bad[:at+1]
		}
		c.then(after, bad)
	}
}

// recorder keeps what is sent.
type recorder struct {
	*net.TCPConn
	mu   sync.Mutex
	sent []byte
}

func (r *recorder) Write(p []byte) (int, error) {
	r.mu.Lock()
	r.sent = append(r.sent, p...)
	r.mu.Unlock()
	return r.TCPConn.Write(p)
}

// record dials, lets a well-behaved host work, and returns what it has sent.
func (r *rig) record(d nvmetcp.Digests, work func(q *queue)) []byte {
	r.t.Helper()
	nc, err := net.Dial("tcp", r.addr)
	if err != nil {
		r.t.Fatal(err)
	}
	rec := &recorder{TCPConn: nc.(*net.TCPConn)}
	q := beginWith(r.t, rec, d)
	work(q)
	q.close()
	return rec.sent
}

// recordAdmin is an admin queue from Connect to shutdown.
func (r *rig) recordAdmin() []byte { return r.recordAdminWith(0) }

func (r *rig) recordAdminWith(digests nvmetcp.Digests) []byte {
	return r.record(digests, func(q *queue) {
		d := nvme.ConnectData{HostID: nvme.HostID{15: 9}, CntlID: nvme.CntlIDDynamic, Subsystem: subNQN, Host: hostNQN}
		h := &host{queue: q, r: r, data: d}
		if _, err := q.connect(0, d, time.Minute); err != nil {
			r.t.Fatal(err)
		}
		h.enable()
		h.property(nvme.PropCAP)
		h.identify(nvme.CNSController, 0)
		h.identify(nvme.CNSNamespace, 1)
		h.log(nvme.LogSMART, 512)
		var s nvme.SQE
		s.Init(nvme.AdminAsyncEvent, 0)
		h.start(s, nil, nil)
		s.Init(nvme.AdminKeepAlive, 0)
		_, _ = h.do(s, nil, nil)
		s.Init(nvme.AdminSetFeatures, 0)
		s.SetCDW(10, 7) // number of queues
		s.SetCDW(11, 3|3<<16)
		_, _ = h.do(s, nil, nil)
		s.Init(nvme.AdminAbort, 0)
		s.SetCDW(10, 99<<16)
		_, _ = h.do(s, nil, nil)
		h.shutdown()
	})
}

// recordIO is an I/O queue of h with every kind of transfer.
func (r *rig) recordIO(h *host, d nvmetcp.Digests) []byte {
	return r.record(d, func(q *queue) {
		if _, err := q.connect(1, h.data, 0); err != nil {
			r.t.Fatal(err)
		}
		for _, n := range []int{512, 16 << 10} { // in the capsule, and by R2T
			if err := q.write(8, pattern(n, 1)); err != nil {
				r.t.Fatal(err)
			}
			if _, err := q.readBlocks(8, n); err != nil {
				r.t.Fatal(err)
			}
		}
		_, _ = q.do(rw(nvme.OpCompare, 8, 1), nil, pattern(512, 1))
		_, _ = q.do(rw(nvme.OpWriteZeroes, 8, 8), nil, nil)
		_, _ = q.do(rw(nvme.OpVerify, 8, 8), nil, nil)
		var s nvme.SQE
		s.Init(nvme.OpFlush, 1)
		_, _ = q.do(s, nil, nil)
		s.Init(nvme.OpDatasetManagement, 1)
		s.SetCDW(11, 4)
		_, _ = q.do(s, nil, make([]byte, 16))
	})
}

// Random bytes, behind ICReq and Connect too, and other protocols.
func TestGarbage(t *testing.T) {
	r := hostileRig(t, nil)
	stream := r.recordAdmin()
	by := r.bystander()
	c := r.campaign(1)
	ic, connect := stream[:nvmetcp.ICLen], stream[nvmetcp.ICLen:][:nvmetcp.CapsuleCmdLen+nvme.ConnectDataLen]
	for n := range 30 {
		c.try(ic, c.random(n*7))
		c.try(ic, connect, c.random(n*29))
		c.try(ic, []byte{byte(nvmetcp.TypeCapsuleCmd), 0, nvmetcp.CapsuleCmdLen, 0, nvmetcp.CapsuleCmdLen, 0, 0, 0}, c.random(n*5))
		c.try(ic, connect, []byte{byte(nvmetcp.TypeH2CData), byte(nvmetcp.FlagLast), nvmetcp.DataLen, nvmetcp.DataLen, 0, 1, 0, 0}, c.random(n*9))
		c.try(ic, []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
		c.try(ic, ic)
	}
	c.wg.Wait()
	by.check(0)
}

// A well-behaved host's admin and I/O queues, without digests and with both, with one byte
// changed at a time, or cut off.
func TestCorruptedHost(t *testing.T) {
	r := hostileRig(t, nil)
	by := r.bystander()
	id := byte(0)
	for d, step := range map[nvmetcp.Digests]int{0: 8, nvmetcp.DigestHeader | nvmetcp.DigestData: 32} {
		if testing.Short() {
			step *= 5
		}
		c := r.campaign(2)
		c.corrupt(r.recordAdminWith(d), step, nil)
		c.wg.Wait()
		// A breach ends the controller, so that each I/O queue has one of its own.
		first := r.attach(hostNQN, 0, 0)
		stream := r.recordIO(first, d)
		first.property(nvme.PropCSTS)
		first.close()
		c.corrupt(stream, 8*step, func(b []byte) func() {
			id++
			h := r.attach(hostNQN, id, 0)
			data := b[nvmetcp.ICLen+nvmetcp.CapsuleCmdLen:] // of Connect
			if d&nvmetcp.DigestHeader != 0 {
				data = data[4:]
			}
			copy(data, h.data.HostID[:])
			binary.LittleEndian.PutUint16(data[16:], h.data.CntlID)
			if d&nvmetcp.DigestData != 0 {
				binary.LittleEndian.PutUint32(data[nvme.ConnectDataLen:], crc32c.Update(0, data[:nvme.ConnectDataLen]))
			}
			return h.close
		})
		c.wg.Wait()
		if want := 2000 / step; c.tried < want {
			t.Errorf("digests %s: only %d streams were tried, want %d", d, c.tried, want)
		}
	}
	by.check(0)
}

// What Linux hosts sent, byte for byte, and with one byte changed or cut off, against a
// subsystem of the name that they wanted.
func TestCapturedHosts(t *testing.T) {
	r := hostileRig(t, nil)
	by := r.bystander()
	c := r.campaign(3)
	variants := 24
	if testing.Short() {
		variants = 4
	}
	known := map[string]bool{}
	for _, name := range pcaptest.Names(t, "nvme-tcp") {
		for _, k := range pcaptest.Open(t, name) {
			at := nvmetcp.ICLen + nvmetcp.CapsuleCmdLen + 256 // the subsystem's name in Connect
			if !k.Complete || len(k.C2S) <= at {
				continue
			}
			if i := bytes.Index(k.C2S, []byte("nqn.")); i >= at && i < at+8 { // digests may lie before it
				nqn, _, _ := bytes.Cut(k.C2S[i:], []byte{0})
				if !known[string(nqn)] && r.srv.AddSubsystem(nvmf.SubsystemConfig{NQN: string(nqn), Namespaces: []nvmf.NamespaceConfig{{NSID: 1, Volume: r.vol}}}) == nil {
					known[string(nqn)] = true
				}
			}
			stream := k.C2S[:min(len(k.C2S), 64<<10)]
			c.try(stream)
			for range variants {
				bad := bytes.Clone(stream)
				at := c.rng.IntN(min(len(bad), 4096))
				bad[at] ^= byte(1 + c.rng.IntN(255))
				c.try(bad)
				c.try(stream[:at])
			}
		}
	}
	c.wg.Wait()
	if c.tried < 20 || len(known) == 0 {
		t.Errorf("only %d streams and %d subsystems came out of the captures", c.tried, len(known))
	}
	by.check(0)
}

// Hosts that connect, and go without a word.
func TestConnectFlood(t *testing.T) {
	r := hostileRig(t, nil)
	stream := r.recordAdmin()
	by := r.bystander()
	ic, connect := stream[:nvmetcp.ICLen], stream[nvmetcp.ICLen:][:nvmetcp.CapsuleCmdLen+nvme.ConnectDataLen]
	c := r.campaign(4)
	floods := 1500
	if testing.Short() {
		floods = 150
	}
	for range floods {
		c.try(ic, connect)
	}
	c.try(ic, bytes.Repeat(connect, 500)) // refused but the first
	c.wg.Wait()
	by.check(0)
}

// Hosts that send and never read, as much as their queue allows at a time, and more: event
// requests, keep alives and Identify beyond all limits. The target reads them no more, or
// ends them, and what waits for them is bounded.
func TestUnreadFlood(t *testing.T) {
	var staging *blockdev.Pool
	r := hostileRig(t, func(c *target.Config) { staging = c.Staging })
	stream := r.recordAdmin()
	stream = stream[:nvmetcp.ICLen+nvmetcp.CapsuleCmdLen+nvme.ConnectDataLen+nvmetcp.CapsuleCmdLen] // ICReq, Connect, CC.EN
	by := r.bystander()
	var wg sync.WaitGroup
	for name, fill := range map[string]func(s *nvme.SQE){
		"event requests": func(s *nvme.SQE) { s.Init(nvme.AdminAsyncEvent, 0) },
		"keep alives":    func(s *nvme.SQE) { s.Init(nvme.AdminKeepAlive, 0) },
		"Identify": func(s *nvme.SQE) {
			s.NewIdentify(nvme.CNSController, 0)
			s.SGL().SetBlock(nvme.SGLTransport, 0, nvme.IdentifyLen)
		},
	} {
		for _, most := range []uint16{16, 64} {
			var batch []byte
			for cid := range most {
				var k nvmetcp.CapsuleCmd
				fill(k.SQE())
				k.SQE().SetCID(100 + cid)
				k.SetHeader(0, 0, 0)
				batch = append(batch, k[:]...)
			}
			wg.Add(1)
			go func() {
				defer wg.Done()
				if err := r.flood(stream, batch); err != nil {
					t.Errorf("%s, %d at a time: %v", name, most, err)
				}
			}()
		}
	}
	wg.Wait()
	if kept := staging.Reserved(); kept > 8<<20 {
		t.Errorf("%d bytes are kept for hosts", kept)
	}
	by.check(0)
}

// A host that has writes under way, of a volume that is received into staging memory, and sends none of
// their data, leaves others their part of it.
func TestStagingOfASilentHost(t *testing.T) {
	var staging *blockdev.Pool
	r := hostileRig(t, func(c *target.Config) { staging, c.Timeouts.DataOut = c.Staging, -1 })
	for i, v := range []struct{ sub, host string }{{"nqn.2026-11.softiser:silent", "nqn.2026-11.softiser:silent-host"}, {"nqn.2026-11.softiser:other", "nqn.2026-11.softiser:other-host"}} {
		if err := r.srv.AddSubsystem(nvmf.SubsystemConfig{
			NQN: v.sub, Hosts: []nvmf.HostRule{{NQN: v.host}},
			Namespaces: []nvmf.NamespaceConfig{{NSID: 1, Volume: newMem(t, 16<<20), Placement: volume.PlacementVerified}},
		}); err != nil {
			t.Fatal(i, err)
		}
	}
	silent := r.attachTo("nqn.2026-11.softiser:silent", "nqn.2026-11.softiser:silent-host", 201, 1)
	other := r.attachTo("nqn.2026-11.softiser:other", "nqn.2026-11.softiser:other-host", 202, 1)
	const many = 12 // of 1 MiB each; there are 8
	for range many {
		silent.io[0].startSilent(rw(nvme.OpWrite, 0, 2048), make([]byte, 1<<20))
	}
	<-silent.io[0].asked
	for n := range byte(8) {
		want := pattern(1<<20, n)
		if err := other.io[0].write(uint64(n)*2048, want); err != nil {
			t.Fatalf("write %d beside the silent host: %v", n, err)
		}
	}
	if out := staging.Out(); out > 2<<20 {
		t.Errorf("%d bytes of staging memory are out", out)
	}
	silent.io[0].close() // what waits has ended with it
	await.True(t, "all memory has come back", func() bool { return staging.Out() == 0 })
}

// flood sends first, and then batch again and again until the target takes no more.
func (r *rig) flood(first, batch []byte) error {
	nc, err := net.Dial("tcp", r.addr)
	if err != nil {
		return err
	}
	defer nc.Close()
	if _, err := nc.Write(first); err != nil {
		return err
	}
	rest := batch
	for end := time.Now().Add(ioTime); time.Now().Before(end); {
		_ = nc.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
		n, err := nc.Write(rest)
		if err != nil {
			return nil
		}
		if rest = rest[n:]; len(rest) == 0 {
			rest = batch
		}
	}
	return errors.New("the target takes the flood for ever")
}

// Hosts that stop somewhere on the way to a queue that works, or send a byte now and then,
// are given a time for it.
func TestSlowHosts(t *testing.T) {
	const given = 3 * time.Second // enough for the bystander's own login on a loaded machine
	r := hostileRig(t, func(c *target.Config) { c.Timeouts.FirstBytes, c.Timeouts.Login = given, given })
	stream := r.recordAdmin()
	by := r.bystander()
	var wg sync.WaitGroup
	for _, n := range []int{0, 1, 7, 8, 100, nvmetcp.ICLen, nvmetcp.ICLen + 1, nvmetcp.ICLen + nvmetcp.CapsuleCmdLen, nvmetcp.ICLen + nvmetcp.CapsuleCmdLen + 900} {
		for _, slowly := range []bool{false, true} {
			wg.Add(1)
			go func() {
				defer wg.Done()
				nc, err := net.Dial("tcp", r.addr)
				if err != nil {
					t.Error(err)
					return
				}
				defer nc.Close()
				_ = nc.SetDeadline(time.Now().Add(ioTime))
				_, _ = nc.Write(stream[:n])
				gone := make(chan struct{})
				go func() {
					defer close(gone)
					if _, err := io.Copy(io.Discard, nc); os.IsTimeout(err) {
						t.Errorf("a host that stops behind %d bytes (goes on slowly: %v) is kept", n, slowly)
					}
				}()
				tick := time.NewTicker(given / 20) // what is missing is more than 20 bytes, everywhere
				defer tick.Stop()
				for at := n; ; {
					select {
					case <-gone:
						return
					case <-tick.C:
						if slowly && at < len(stream) {
							_, _ = nc.Write(stream[at : at+1])
							at++
						}
					}
				}
			}()
		}
	}
	wg.Wait()
	by.check(0)
}

// What a host does wrong on a queue ends its controller, and that queue after a TermReq that
// says what it was; everybody else goes on.
func TestBreachEndsItsHost(t *testing.T) {
	r := hostileRig(t, nil)
	by := r.bystander()
	flush := func() []byte {
		var k nvmetcp.CapsuleCmd
		k.SQE().Init(nvme.OpFlush, 1)
		k.SetHeader(0, 0, 0)
		return k[:]
	}
	set := func(b []byte, at int, v byte) []byte { b[at] = v; return b }
	data := func(cid, ttag uint16) []byte {
		var d nvmetcp.Data
		d.Set(nvmetcp.TypeH2CData, nvmetcp.FlagLast, 0, cid, ttag, 0, 4, 0)
		return append(d[:], 1, 2, 3, 4)
	}
	for name, c := range map[string]struct {
		bytes []byte
		fes   nvmetcp.FES
		fei   uint32
	}{
		"ICReq twice":     {(&nvmetcp.ICReq{}).AppendTo(nil), nvmetcp.FESSequence, 0},
		"unknown type":    {set(flush(), 0, 0x0B), nvmetcp.FESInvalidHeader, 0},
		"a response":      {set(flush(), 0, byte(nvmetcp.TypeCapsuleResp)), nvmetcp.FESInvalidHeader, 0},
		"header length":   {set(flush(), 2, 71), nvmetcp.FESInvalidHeader, 2},
		"2 GiB":           {set(set(flush(), 3, nvmetcp.CapsuleCmdLen), 7, 0x80), nvmetcp.FESDataLimit, 0},
		"digest flag":     {set(flush(), 1, byte(nvmetcp.FlagHDGST)), nvmetcp.FESInvalidHeader, 1},
		"data not wanted": {data(1, 7), nvmetcp.FESInvalidHeader, nvmetcp.AtTTAG},
	} {
		for _, admin := range []bool{false, true} {
			h := r.attach(hostNQN, 10, 2)
			bad := h.io[0]
			if admin {
				bad = h.queue
			}
			if err := bad.send(c.bytes, nil); err != nil {
				t.Fatal(err)
			}
			<-bad.done
			var f *terminated
			if !errors.As(bad.err, &f) || f.FES != c.fes || f.FEI != c.fei {
				t.Errorf("%s (admin %v) ended with %v; want %s at %d", name, admin, bad.err, c.fes, c.fei)
			}
			bad.close()
			for _, q := range append(h.io, h.queue) {
				<-q.done // all of them end
			}
			await.True(t, "the controller has ended", func() bool { return len(r.srv.Controllers()) == 1 })
		}
	}
	by.check(0)
}

// Once half of the controllers that there may be are there, an address has a share of them:
// who connects again and again, and stays, keeps no other address out.
func TestControllersAreShared(t *testing.T) {
	var most syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &most); err != nil || most.Cur < 2048 {
		t.Skipf("%d descriptors are allowed, 2048 are wanted (%v)", most.Cur, err)
	}
	r := hostileRig(t, nil)
	by := r.bystander()
	from := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}
	d := nvme.ConnectData{HostID: nvme.HostID{1}, CntlID: nvme.CntlIDDynamic, Subsystem: subNQN, Host: hostNQN}
	var greedy []*queue
	for {
		q := dialFrom(t, from, r.addr)
		if _, err := q.connect(0, d, time.Minute); err != nil {
			if !errors.Is(err, nvme.ConnectControllerBusy) {
				t.Error(err)
			}
			break
		}
		if greedy = append(greedy, q); len(greedy) > 600 {
			t.Fatal("an address has more than half of all controllers")
		}
	}
	if n := len(greedy); n != 511 { // and one of the bystander
		t.Errorf("refused behind %d controllers", n)
	}
	r.attach(hostNQN, 10, 1).shutdown()
	for _, q := range greedy[:400] { // what it gives back is there again, as far as its share
		q.close()
	}
	await.True(t, "controllers have ended", func() bool { return len(r.srv.Controllers()) <= 112 })
	if _, err := dialFrom(t, from, r.addr).connect(0, d, time.Minute); err != nil {
		t.Error(err)
	}
	by.check(112)
}

// Data that was damaged on its way fails its command, and may be sent again; the connection goes on.
func TestDamagedData(t *testing.T) {
	r := open(t, nil)
	h := r.attach(hostNQN, 10, 0)
	nc, err := net.Dial("tcp", r.addr)
	if err != nil {
		t.Fatal(err)
	}
	q := beginWith(t, nc, nvmetcp.DigestData)
	if _, err := q.connect(1, h.data, 0); err != nil {
		t.Fatal(err)
	}
	data := pattern(64<<10, 1)
	c := q.startSilent(rw(nvme.OpWrite, 0, 128), data)
	<-q.asked
	var d nvmetcp.Data
	d.Set(nvmetcp.TypeH2CData, nvmetcp.FlagLast, q.digests, c.cid, 0, 0, uint32(len(data)), 0)
	b := withDigests(d[:], data)
	b[len(b)-1] ^= 1
	if _, err := q.nc.Write(b); err != nil {
		t.Fatal(err)
	}
	if s := q.status(c); s != nvme.TransientTransport {
		t.Errorf("damaged data: %v", s)
	}
	if err := q.write(0, data); err != nil {
		t.Errorf("the write again: %v", err)
	}
}
