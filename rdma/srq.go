package rdma

import (
	"fmt"

	"softiser/rdma/internal/verbs"
)

// SRQConfig describes a shared receive queue.
type SRQConfig struct {
	MaxRecv int // buffers; 1024
	MaxSGE  int // pieces per buffer; 16
}

// SRQ is a receive queue that several queue pairs take buffers from. A buffer is
// taken when the first segment of a Send arrives: the one that was posted last.
type SRQ struct {
	pd   *PD
	cfg  SRQConfig
	q    verbs.SRQ
	life lifetime // queue pairs use it
}

// CreateSRQ creates a shared receive queue.
func (pd *PD) CreateSRQ(cfg SRQConfig) (*SRQ, error) {
	def(&cfg.MaxRecv, 1024)
	def(&cfg.MaxSGE, 16)
	d := pd.dev
	if cfg.MaxRecv < 1 || cfg.MaxRecv > d.cfg.MaxSRQWR {
		return nil, invalid("MaxRecv %d, the device allows 1 to %d", cfg.MaxRecv, d.cfg.MaxSRQWR)
	}
	if cfg.MaxSGE < 1 || cfg.MaxSGE > d.cfg.MaxSGE {
		return nil, invalid("MaxSGE %d, the device allows 1 to %d", cfg.MaxSGE, d.cfg.MaxSGE)
	}
	if !pd.life.use() {
		return nil, errGone("protection domain")
	}
	if err := take(&d.nSRQ, d.cfg.MaxSRQ, "shared receive queues"); err != nil {
		pd.life.release()
		return nil, err
	}
	s := &SRQ{pd: pd, cfg: cfg}
	s.q.Init(cfg.MaxRecv)
	return s, nil
}

// PostRecv adds buffers. The error is ErrQueueFull or ErrInvalid; those before the refused one
// have been added.
func (s *SRQ) PostRecv(wrs ...RecvWR) error {
	s.Lock()
	defer s.Unlock()
	for i := range wrs {
		if err := s.PostRecvLocked(&wrs[i]); err != nil {
			return err
		}
	}
	return nil
}

// Lock and Unlock enclose calls of PostRecvLocked. No other method of the queue may be called in
// between.
func (s *SRQ) Lock() { s.q.Lock() }

// Unlock is described at Lock.
func (s *SRQ) Unlock() { s.q.Unlock() }

// PostRecvLocked adds a buffer between Lock and Unlock.
func (s *SRQ) PostRecvLocked(wr *RecvWR) error {
	if len(wr.SGL) > s.cfg.MaxSGE {
		return invalid("%d pieces of memory, the shared receive queue allows %d", len(wr.SGL), s.cfg.MaxSGE)
	}
	_, err := fillRecvLocked(&s.q.RecvQueue, wr)
	return err
}

// Arm asks for one EventSRQLimit, to the queue pair that takes the buffer, when
// fewer than n buffers are left. A queue pair that needs a buffer and finds none raises
// one, too, however often: over iWARP it looks again when OnEvent has returned, before it
// ends the connection.
func (s *SRQ) Arm(n int) { s.q.Arm(n) }

// Len is the number of buffers in the queue.
func (s *SRQ) Len() int { return s.q.Len() }

// Close ends the queue. It fails with ErrBusy while queue pairs use it. Buffers
// in it go back to the caller without completions.
func (s *SRQ) Close() error {
	users, first := s.life.end()
	if users > 0 {
		return fmt.Errorf("%w: the shared receive queue serves %d queue pairs", ErrBusy, users)
	}
	if first {
		s.pd.dev.nSRQ.Add(-1)
		s.pd.life.release()
	}
	return nil
}
