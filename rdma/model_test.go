package rdma_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"softiser/internal/race"
	"softiser/rdma"
	"softiser/rdma/rdmatest"
)

// TestModel posts random operations from both ends at once and compares all
// memory with byte arrays on which the same operations are done in order. Each
// end aims at its own half of the other's memory, so that the two do not race;
// what follows a Read of the same bytes is fenced.
func TestModel(t *testing.T) {
	forEach(t, func(t *testing.T, o *rdmatest.Options) {
		for seed := range uint64(6) {
			t.Run(fmt.Sprint(seed), func(t *testing.T) { runModel(t, seed, *o) })
		}
	})
}

const modelSize = 1 << 20

// side is one end with its memory and what the model says about it.
type side struct {
	*rdmatest.End
	mem   []byte // registered; lower half written by the peer's requests
	model []byte
	mr    *rdma.MR
	rng   *rand.Rand

	wants []expected // requests posted, in order
	recvs [][]byte   // Sends to arrive, in order
	bufs  [][]byte   // posted receive buffers, in order
	nrecv int
}

type expected struct {
	id       uint64
	signaled bool
	sink     []byte // Reads and atomics
	data     []byte
}

func runModel(t *testing.T, seed uint64, o rdmatest.Options) {
	rng := rand.New(rand.NewPCG(seed, 77))
	var s [2]*side
	mode := crcModes[seed%2]
	maxFPDU := []int{0, 1448, 4000}[seed%3]
	mtu := []int{0, 256, 1024}[seed%3]
	o.Client = rdma.ConnParams{CRC: mode, Extensions: true, IRD: 4, ORD: 4, MPA: rdma.MPAParams{MaxFPDU: maxFPDU, P2P: rdma.P2PWrite}, RoCE: rdma.RoCEParams{PathMTU: mtu}}
	o.Server = rdma.ConnParams{CRC: mode, Extensions: true, IRD: 4, ORD: 2, MPA: rdma.MPAParams{MaxFPDU: maxFPDU}}
	o.QP = rdma.QPConfig{MaxSend: 64, MaxRecv: 256, MaxInline: 512}
	a, b := rdmatest.NewPair(t, &o)
	for i, e := range []*rdmatest.End{a, b} {
		s[i] = &side{End: e, mem: aligned(modelSize), rng: rng}
		copy(s[i].mem, pattern(modelSize, seed+uint64(i)))
		s[i].model = bytes.Clone(s[i].mem)
		mr, err := e.PD.RegMR(s[i].mem, rdma.AccessLocalWrite|rdma.AccessRemoteRead|rdma.AccessRemoteWrite|rdma.AccessRemoteAtomic|rdma.AccessZeroBased)
		if err != nil {
			t.Fatal(err)
		}
		defer mr.Dereg()
		s[i].mr = mr
	}
	rounds := 25
	if race.Enabled {
		rounds = 8
	}
	for round := range rounds {
		for i := range s {
			for len(s[i].bufs)-s[i].nrecv < 42 {
				buf := make([]byte, 3000)
				s[i].bufs = append(s[i].bufs, buf)
				s[i].Recv(t, uint64(len(s[i].bufs)-1), buf)
			}
		}
		for i := range s {
			for range 1 + rng.IntN(40) {
				s[i].post(t, s[1-i])
			}
			s[i].post(t, s[1-i], true) // the last one is a Send, signalled
		}
		s[0].QP.Push()
		s[1].QP.Push()
		for i := range s {
			s[i].check(t, round)
		}
		for i := range s {
			if !bytes.Equal(s[i].mem, s[i].model) {
				t.Fatalf("round %d: the memory of side %d differs from the model", round, i)
			}
		}
	}
}

// size draws a length around the thresholds of the engine.
func (s *side) size(limit int) int {
	n := []int{0, 1, 7, 64, 255, 256, 257, 1428, 4095, 4096, 4097, 30000, 64 << 10, 100 << 10}[s.rng.IntN(14)]
	if s.rng.IntN(3) == 0 {
		n = s.rng.IntN(20000)
	}
	return min(n, limit)
}

// pieces cuts mem at random.
func (s *side) pieces(mem []byte) (sgl []rdma.SGE) {
	for len(mem) > 1 && len(sgl) < 5 && s.rng.IntN(2) == 0 {
		n := s.rng.IntN(len(mem))
		sgl = append(sgl, s.SGE(mem[:n]))
		mem = mem[n:]
	}
	return append(sgl, s.SGE(mem))
}

func (s *side) post(t *testing.T, peer *side, signal ...bool) {
	t.Helper()
	wr := rdma.SendWR{ID: uint64(len(s.wants)), Flags: rdma.FlagFence}
	if len(signal) > 0 || s.rng.IntN(3) == 0 {
		wr.Flags |= rdma.FlagSignaled
	}
	x := expected{id: wr.ID, signaled: wr.Flags&rdma.FlagSignaled != 0}
	n := s.size(100 << 10)
	off := s.rng.IntN(modelSize/2 - n)
	wr.Remote = rdma.RemoteAddr{TO: uint64(off), STag: peer.mr.RKey()}
	kind := s.rng.IntN(6)
	if len(signal) > 0 {
		kind = 2 // when it has arrived, so has everything before it
	}
	switch kind {
	case 0:
		wr.Op = rdma.OpWrite
		data := pattern(n, s.rng.Uint64())
		copy(peer.model[off:], data)
		wr.SGL = s.pieces(data)
		if n <= 512 && s.rng.IntN(2) == 0 {
			wr.Flags |= rdma.FlagInline
		}
	case 1:
		wr.Op = rdma.OpRead
		wr.Flags &^= rdma.FlagFence
		x.sink = make([]byte, n)
		x.data = bytes.Clone(peer.model[off : off+n])
		wr.SGL = s.pieces(x.sink)
	case 2, 3:
		wr.Op = rdma.OpSend
		data := pattern(min(n, 3000), s.rng.Uint64())
		peer.recvs = append(peer.recvs, data)
		wr.SGL = s.pieces(data)
	case 4:
		// The fence of an atomic waits for Reads; Reads behind it may pass it at the
		// responder only in theory of other stacks, not in this one.
		wr.Op = rdma.OpFetchAdd
		wr.Remote.TO &^= 7
		wr.Add = s.rng.Uint64()
		word := peer.model[wr.Remote.TO:]
		x.data = bytes.Clone(word[:8])
		x.sink = make([]byte, 8)
		binary.NativeEndian.PutUint64(word, binary.NativeEndian.Uint64(word)+wr.Add)
		wr.SGL = []rdma.SGE{s.SGE(x.sink)}
	case 5:
		wr.Op = rdma.OpCmpSwap
		wr.Remote.TO &^= 7
		word := peer.model[wr.Remote.TO:]
		old := binary.NativeEndian.Uint64(word)
		wr.Compare, wr.Swap = old+uint64(s.rng.IntN(2)), s.rng.Uint64()
		x.data = bytes.Clone(word[:8])
		x.sink = make([]byte, 8)
		if wr.Compare == old {
			binary.NativeEndian.PutUint64(word, wr.Swap)
		}
		wr.SGL = []rdma.SGE{s.SGE(x.sink)}
	}
	s.wants = append(s.wants, x)
	if err := s.QP.Enqueue(&wr); err != nil {
		t.Fatal(err)
	}
}

// check waits for all completions of the round and compares them.
func (s *side) check(t *testing.T, round int) {
	t.Helper()
	need := 0
	for _, x := range s.wants {
		if x.signaled {
			need++
		}
	}
	next := 0
	for need > 0 || s.nrecv < len(s.recvs) {
		wc := s.Poll(t, 1)[0]
		if wc.Status != rdma.StatusSuccess {
			t.Fatalf("round %d: %+v; %v", round, wc, s.QP.Err())
		}
		if wc.Opcode == rdma.WCRecv {
			want := s.recvs[s.nrecv]
			if wc.ID != uint64(s.nrecv) || int(wc.ByteLen) != len(want) || !bytes.Equal(s.bufs[s.nrecv][:len(want)], want) {
				t.Fatalf("round %d: Send %d arrived wrong, as %+v", round, s.nrecv, wc)
			}
			s.nrecv++
			continue
		}
		for !s.wants[next].signaled {
			next++
		}
		if wc.ID != s.wants[next].id {
			t.Fatalf("round %d: completion of %d, expected %d", round, wc.ID, s.wants[next].id)
		}
		next++
		need--
	}
	for _, x := range s.wants {
		if !bytes.Equal(x.sink, x.data) {
			t.Fatalf("round %d: request %d read wrong data", round, x.id)
		}
	}
	s.wants = s.wants[:0]
}
