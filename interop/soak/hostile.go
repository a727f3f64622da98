package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"softiser/initiator"
	"softiser/initiator/nvmf"
	"softiser/internal/nvme"
)

// hostilePeers lets every kind of attacker loose on one target at once. Beside them
// verified loads run over every wire, and honest initiators and hosts log in, write, read
// and log out, and ask the discovery service: each of them has to succeed. When the attackers are gone the target holds what it held before.
func hostilePeers(ctx context.Context, r *run) (string, error) {
	t, err := r.target(ctx, filepath.Join(r.dir, "disk.img")+",size=64MiB")
	if err != nil {
		return "", err
	}
	defer t.kill()
	// A first round fills what is kept for later: pools, caches, tables.
	if _, err := r.attack(ctx, t, 1); err != nil {
		return "", err
	}
	before, err := t.settled(ctx, nil)
	if err != nil {
		return "", err
	}
	logins, err := r.attack(ctx, t, r.rounds)
	if err != nil {
		return "", err
	}
	after, err := t.settled(ctx, &before)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d honest logins beside %d kinds of attackers; goroutines %d → %d, descriptors %d → %d, memory %d → %d MiB",
		logins, len(attackers)+len(roceAttackers), before.goroutines, after.goroutines, before.descriptors, after.descriptors, before.memory>>20, after.memory>>20), nil
}

// attack runs all attackers until every one has attacked n times and as many honest
// initiators have come and gone, beside loads over every wire.
func (r *run) attack(ctx context.Context, t *targetProcess, n int) (logins int, err error) {
	ws, err := r.startWriters(ctx, t)
	defer ws.kill()
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	r.startAttackers(ctx, cancel, &wg, t, n)
	attacked := make(chan struct{})
	go func() { wg.Wait(); close(attacked) }()
	ended := func() bool {
		select {
		case <-attacked:
			return true
		default:
			return false
		}
	}
	for ctx.Err() == nil && (logins < max(n, len(allWires)+1) || !ended()) {
		over, err := "discovery", error(nil)
		if k := logins % (len(allWires) + 1); k < len(allWires) {
			over = allWires[k]
			err = honest(ctx, urlOf(over, t.at(over)), byte(logins))
		} else {
			err = honestHost(ctx, t.addr, byte(logins))
		}
		if err != nil {
			return logins, fmt.Errorf("honest login %d, over %s: %w\n%s", logins, over, err, t.tail())
		}
		logins++
	}
	<-attacked
	if ctx.Err() != nil {
		return logins, context.Cause(ctx)
	}
	return logins, r.endWriters(ctx, t, ws)
}

// writer is a load and the process that makes it.
type writer struct {
	load
	p *process
}

type writers []writer

func (ws writers) kill() {
	for _, w := range ws {
		w.p.kill()
	}
}

// startWriters begins a load over every wire, and waits until each has written. With an
// error too there may be some.
func (r *run) startWriters(ctx context.Context, t *targetProcess) (ws writers, err error) {
	for i, scheme := range allWires {
		l := load{scheme: scheme, addr: t.at(scheme), ledger: filepath.Join(r.dir, scheme+".hostile.ledger"), at: i * 4 << 20, size: 4 << 20, block: 4096, depth: 4, seed: 1}
		p, err := r.start("iser-initiator", l.args("--do-verify=0", "--time-based", "--runtime=600", "--rate-iops=125")...)
		if err != nil {
			return ws, err
		}
		ws = append(ws, writer{l, p})
	}
	for _, w := range ws {
		if err := w.wrote(ctx, w.p, 3); err != nil {
			return ws, err
		}
	}
	return ws, nil
}

// endWriters ends loads that must be running still, and verifies what they have written.
func (r *run) endWriters(ctx context.Context, t *targetProcess, ws writers) error {
	for _, w := range ws {
		select {
		case <-w.p.done:
			return fmt.Errorf("the load over %s beside the attackers ended: %v\n%s", w.scheme, w.p.err, w.p.tail())
		case <-t.done:
			return fmt.Errorf("the target ended: %v\n%s", t.err, t.tail())
		default:
		}
		w.p.kill()
	}
	for _, w := range ws {
		if err := r.verify(ctx, w.load); err != nil {
			return fmt.Errorf("the load over %s beside the attackers: %w", w.scheme, err)
		}
	}
	return nil
}

// startAttackers has every attacker attack n times; cancel is told if the target cannot be
// reached any more.
func (r *run) startAttackers(ctx context.Context, cancel context.CancelCauseFunc, wg *sync.WaitGroup, t *targetProcess, n int) {
	for i, a := range attackers {
		seed := r.rnd.Uint64()
		wg.Go(func() {
			for k := range n {
				if err := newPeer(ctx.Done(), t.addr, seed+uint64(k)).attack(&a.assault); err != nil && ctx.Err() == nil {
					// The target has refused or ended it, which is its right; that it
					// cannot be reached any more is not.
					if c, err := net.Dial("tcp", t.addr); err == nil {
						c.Close()
					} else {
						cancel(fmt.Errorf("attacker %d, %s: %w", i, a.name, err))
					}
				}
			}
		})
	}
	for _, a := range roceAttackers {
		seed := r.rnd.Uint64()
		wg.Go(func() {
			for k := range n {
				if err := a.attack(ctx, t.roce, seed+uint64(k)); err != nil && ctx.Err() == nil {
					cancel(fmt.Errorf("attacker over RoCE, %s: %w", a.name, err))
				}
			}
		})
	}
}

// volume is what initiators of iSCSI and hosts of NVMe have in common.
type volume interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
}

// open logs in to the volume of a URL.
func open(ctx context.Context, url string) (volume, error) {
	if strings.HasPrefix(url, "nvme") {
		cfg, err := nvmf.ParseURL(url)
		if err != nil {
			return nil, err
		}
		cfg.HostNQN, cfg.HostID = "nqn.2026-11.soak:honest", [16]byte{0: 1, 15: 1}
		cfg.ConnectTimeout, cfg.CtrlLossTimeout = patience, patience
		if cfg.Transport == nvmf.TransportRoCE {
			cfg.LocalAddress = roceAddr()
		}
		return nvmf.Open(ctx, cfg)
	}
	cfg, err := initiator.ParseURL(url)
	if err != nil {
		return nil, err
	}
	cfg.InitiatorName, cfg.LoginTimeout, cfg.ReplacementTimeout = "iqn.2026-11.soak:honest", patience, patience
	if cfg.Transport == initiator.TransportRoCE {
		cfg.LocalAddress = roceAddr()
	}
	return initiator.Open(ctx, cfg)
}

// honest logs in, writes, reads back and logs out.
func honest(ctx context.Context, url string, fill byte) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	lun, err := open(ctx, url)
	if err != nil {
		return err
	}
	const at, n = 32 << 20, 256 << 10 // beyond what the load writes
	out, in := bytes.Repeat([]byte{fill}, n), make([]byte, n)
	_, err = lun.WriteAt(out, at)
	if err == nil {
		_, err = lun.ReadAt(in, at)
	}
	if err == nil && !bytes.Equal(in, out) {
		err = errors.New("what was read is not what was written")
	}
	return errors.Join(err, lun.Close())
}

// attacker is one way to misbehave.
type attacker struct {
	name string
	assault
}

// attackers are let loose at the same time.
var attackers = []attacker{
	{"connections that say nothing", assault{conns: 200, stays: true}},
	{"half a login", assault{conns: 10, sent: 1, what: func(p *peer, _ uint32) []byte { return p.loginRequest("Normal")[:30] }, stays: true}},
	{"half an MPA key", assault{conns: 10, sent: 1, what: always("MPA ID Re"), stays: true}},
	{"an MPA request without a login", assault{conns: 10, sent: 1, what: always("MPA ID Req Frame\x40\x01\x00\x00"), stays: true}},
	{"noise", assault{conns: 20, sent: 1, what: (*peer).noise}},
	{"logins one after the other, without a logout", assault{conns: 50, session: "Normal"}},
	{"names with escape sequences", assault{conns: 1, session: "Normal", name: "iqn.2026-11.soak:\x1b]0;owned\x07\x1b[2J", stays: true}},
	{"discovery sessions that stay", assault{conns: 60, session: "Discovery", stays: true}},
	{"SendTargets many times in one request", assault{conns: 1, session: "Discovery", sent: 1, what: (*peer).sendTargets, answers: awaited}},
	{"commands behind a gap in the numbering", assault{conns: 1, session: "Normal", sent: 60,
		what: func(p *peer, i uint32) []byte { return p.ping(2+i, false, make([]byte, 4096)) }, stays: true}}, // the command with number 1 never comes
	{"pings whose answers are not read", assault{conns: 1, session: "Normal", sent: 2000,
		what: func(p *peer, _ uint32) []byte { return p.ping(1, true, make([]byte, 4096)) }, stays: true}},
	{"aborts of tasks that are not there", assault{conns: 1, session: "Normal", sent: 2000, what: (*peer).abort, answers: dropped}},
	{"writes whose data does not come", assault{conns: 1, session: "Normal", sent: 30,
		what: func(p *peer, i uint32) []byte { return p.write(1+i, 48<<20+int64(i)<<16, 64<<10) }, stays: true}},
	{"half an MPA request of an NVMe host", assault{conns: 10, sent: 1, what: func(*peer, uint32) []byte { return mpaRequest()[:40] }, stays: true}},
	{"an MPA request of an NVMe host and nothing else", assault{conns: 10, sent: 1, what: func(*peer, uint32) []byte { return mpaRequest() }, stays: true}},
	{"noise behind an MPA request of an NVMe host", assault{conns: 20, sent: 1, what: (*peer).mpaNoise}},
	{"half an ICReq", assault{conns: 10, sent: 1, what: func(*peer, uint32) []byte { return icReq()[:60] }, stays: true}},
	{"an ICReq and nothing else", assault{conns: 10, sent: 1, what: func(*peer, uint32) []byte { return icReq() }, stays: true}},
	{"noise behind an ICReq", assault{conns: 20, sent: 1, what: (*peer).icNoise}},
	{"discovery controllers that stay", assault{conns: 60, session: nvmeSession, stays: true}},
	{"keep alives whose answers are not read", assault{conns: 1, session: nvmeSession, sent: 5000, what: command(keepAlive, 0), stays: true}},
	{"event requests without end", assault{conns: 1, session: nvmeSession, sent: 5000, what: command(eventRequest, 0), stays: true}},
	{"data that nobody reads", assault{conns: 1, session: nvmeSession, sent: 2000, what: command(identify, nvme.IdentifyLen), stays: true}},
	{"NVMe writes whose data does not come", assault{conns: 1, session: nvmeIO, sent: 30, what: (*peer).dataless, stays: true}},
	{"NVMe reads that nobody reads", assault{conns: 1, session: nvmeIO, sent: 30, what: (*peer).unread, stays: true}},
	{"associations one after the other, without a shutdown", assault{conns: 30, session: nvmeIO}},
	{"capsules with flipped bits", assault{conns: 20, session: nvmeSession, sent: 20, what: (*peer).flippedCapsule, answers: dropped}},
	{"PDUs with flipped bits", assault{conns: 20, session: "Normal", sent: 20, what: (*peer).flipped, answers: dropped}},
}

// always is what is the same each time.
func always(s string) func(*peer, uint32) []byte {
	return func(*peer, uint32) []byte { return []byte(s) }
}

// linger is how long an attacker keeps what it holds.
const linger = 500 * time.Millisecond
