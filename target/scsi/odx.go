package scsi

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/binary"
	"sync"
	"time"

	"softiser/internal/spc"

	"softiser/target/volume"
)

// ROD tokens. A token stands for its blocks as they are when it is used (access
// upon reference): nothing is frozen, and the initiator keeps others from
// writing meanwhile. Tokens are known to this device only, until they have
// not been used for their time-out or the process ends. For a while, and as long
// as nobody needs the room, an expired one is told from one that never was.

const (
	maxTokens           = 256
	rememberExpired     = 10 * time.Minute
	defaultTokenSeconds = 60
	maxTokenSeconds     = 600
)

type rodToken struct {
	unit    *LU
	ranges  []spc.Range
	blocks  uint64
	secret  [32]byte
	keep    time.Duration
	expires time.Time
}

// tokenStore holds the tokens of a device.
type tokenStore struct {
	mu  sync.Mutex
	all map[uint64]*rodToken
}

// add files a token and returns its identifier; false when there is no room.
func (s *tokenStore) add(r *rodToken) (uint64, bool) {
	var id [8]byte
	rand.Read(id[:])
	rand.Read(r.secret[:])
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	r.expires = now.Add(r.keep)
	full := len(s.all) >= maxTokens
	for k, old := range s.all {
		if d := now.Sub(old.expires); d > rememberExpired || d > 0 && full {
			delete(s.all, k)
		}
	}
	if len(s.all) >= maxTokens {
		return 0, false
	}
	if s.all == nil {
		s.all = map[uint64]*rodToken{}
	}
	n := binary.BigEndian.Uint64(id[:])
	s.all[n] = r
	return n, true
}

// find returns the token and puts off its end, or says why it is none.
func (s *tokenStore) find(p *spc.RODToken) (*rodToken, spc.ASC) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, now := s.all[p.ID], time.Now()
	switch {
	case r == nil || subtle.ConstantTimeCompare(r.secret[:], p.Secret[:]) != 1:
		return nil, spc.ASCTokenUnknown
	case now.After(r.expires):
		return nil, spc.ASCTokenExpired
	}
	r.expires = now.Add(r.keep)
	return r, 0
}

// tokenList fetches the parameter list of a token command.
func tokenList(t *Task, least uint32, job func(*Task)) {
	n := binary.BigEndian.Uint32(t.CDB[10:])
	if n == 0 {
		t.good()
		return
	}
	if n < least || n > 64<<10 {
		t.illegal(spc.ASCParameterListLength)
		return
	}
	t.data.fetchParam(int(n), func(t *Task) { copyApart(t, job) })
}

func tokenListID(t *Task) uint32 { return binary.BigEndian.Uint32(t.CDB[6:]) }

// checkTokenRanges checks range descriptors and returns their sum in blocks.
func checkTokenRanges(t *Task, rs []spc.Range) (uint64, bool) {
	g := t.lu.geo()
	if len(rs) == 0 || len(rs) > maxTokenRanges {
		t.illegal(spc.ASCCopyTooManySegments)
		return 0, false
	}
	sum := uint64(0)
	for _, r := range rs {
		if _, ok := span(g, r.LBA, 0, int64(r.Blocks)<<g.Shift); !ok {
			t.illegal(spc.ASCLBAOutOfRange)
			return 0, false
		}
		sum += uint64(r.Blocks)
	}
	if sum > maxTokenBytes>>g.Shift {
		t.badParam(16)
		return 0, false
	}
	return sum, true
}

func cmdPopulateToken(t *Task) { tokenList(t, 16, populateTokenJob) }

// populateTokenJob checks POPULATE TOKEN and makes the token, on a worker.
func populateTokenJob(t *Task) {
	p, err := spc.ParsePopulateToken(t.data.param())
	if err != nil {
		t.illegal(spc.ASCParameterListLength)
		return
	}
	if p.TypeSet && p.Type != spc.RODAccessUponReference {
		t.badParam(8)
		return
	}
	if p.Timeout > maxTokenSeconds {
		t.badParam(4)
		return
	}
	if p.Timeout == 0 {
		p.Timeout = defaultTokenSeconds
	}
	blocks, ok := checkTokenRanges(t, p.Ranges)
	if !ok {
		return
	}
	lu := t.lu
	if old := lu.copies.find(t, tokenListID(t), false); old != nil && old.runs() {
		t.illegal(spc.ASCOperationInProgress)
		return
	}
	r := &rodToken{unit: lu, ranges: p.Ranges, blocks: blocks, keep: time.Duration(p.Timeout) * time.Second}
	id, ok := t.dev.tokens.add(r)
	if !ok {
		t.illegal(spc.ASCTokenResources)
		return
	}
	naa := spc.Designator{CodeSet: spc.CodeSetBinary, Type: spc.DesignatorNAA, ID: lu.vol.Identity().NAA}
	g := lu.geo()
	token := spc.RODToken{
		Type: spc.RODAccessUponReference, ID: id, Bytes: blocks << g.Shift, Secret: r.secret,
		Creator: spc.AppendCopyTarget(nil, naa, uint32(g.Info.BlockSize)),
	}
	made := lu.copies.begin(t, tokenListID(t))
	if made == nil { // another one was faster; the token, which nobody knows, expires
		t.illegal(spc.ASCOperationInProgress)
		return
	}
	made.finish(nil, blocks, token.Append(nil))
	t.good()
}

func cmdWriteUsingToken(t *Task) { tokenList(t, 536, writeUsingTokenJob) }

// writeUsingTokenJob checks everything, then copies; with IMMED the status goes
// out in between and the copy goes on in the background, if there is room.
func writeUsingTokenJob(t *Task) {
	w, err := spc.ParseWriteUsingToken(t.data.param())
	if err != nil {
		t.illegal(spc.ASCParameterListLength)
		return
	}
	head, err := spc.ParseRODToken(w.Token)
	if err != nil {
		t.illegal(spc.ASCTokenLength)
		return
	}
	blocks, ok := checkTokenRanges(t, w.Ranges)
	if !ok {
		return
	}
	lu := t.lu
	c := newCopying(t)
	src, s := c.source(lu, &head, w.Offset, blocks)
	if s != nil {
		c.end()
		t.check(s)
		return
	}
	r := lu.copies.begin(t, tokenListID(t))
	if r == nil {
		c.end()
		t.illegal(spc.ASCOperationInProgress)
		return
	}
	// As many copies as there are workers may go on in the background; whoever asks
	// for more waits for its own.
	behind := w.Immed && int(lu.copies.background.Add(1)) <= lu.cfg.Workers
	if w.Immed && !behind {
		lu.copies.background.Add(-1)
	}
	if !behind {
		done, s := c.writeToken(lu, src, w.Offset, w.Ranges)
		r.finish(s, done, nil)
		c.end()
		copied(t, s)
		return
	}
	c.behind = true
	r.info.Store(&spc.RODInfo{Action: r.action, Status: spc.CopyBackground})
	go func() {
		done, s := c.writeToken(lu, src, w.Offset, w.Ranges)
		r.finish(s, done, nil)
		lu.copies.background.Add(-1)
		c.end()
	}()
	t.good()
}

// source returns what a token stands for (nil: zeroes), if blocks from offset on can be
// copied to lu.
func (c *copying) source(lu *LU, token *spc.RODToken, offset, blocks uint64) (*rodToken, *spc.Sense) {
	if token.Type == spc.RODZero {
		return nil, nil
	}
	src, why := c.dev.tokens.find(token)
	switch {
	case src == nil:
		return nil, badCopy(why)
	case !c.touch(src.unit), !c.may(src.unit, volume.Reads):
		return nil, badCopy(spc.ASCInvalidTokenOp)
	case src.unit.geo().Shift != lu.geo().Shift, offset > src.blocks, blocks > src.blocks-offset:
		s := badCopy(spc.ASCInvalidFieldInParam)
		s.FieldValid, s.Field = true, 8
		return nil, s
	}
	return src, nil
}

// writeToken copies what the token stands for, from offset blocks on, to the
// ranges of lu.
func (c *copying) writeToken(lu *LU, src *rodToken, offset uint64, to []spc.Range) (uint64, *spc.Sense) {
	shift := lu.geo().Shift
	done := uint64(0)
	for _, r := range to {
		for n := uint64(r.Blocks); n > 0; {
			k := n
			var err error
			dir := volume.Writing
			at := int64(r.LBA+uint64(r.Blocks)-n) << shift
			if src == nil {
				err = c.Zero(lu.vol, at, int64(k)<<shift)
			} else {
				var from uint64
				from, k = src.at(offset+done, n)
				_, dir, err = c.Bytes(src.unit.vol, int64(from)<<shift, lu.vol, at, int64(k)<<shift)
			}
			if err != nil {
				return done, copySense(err, dir)
			}
			done += k
			n -= k
		}
	}
	return done, nil
}

// at finds the run of at most n blocks at position pos of the token.
func (r *rodToken) at(pos, n uint64) (lba, k uint64) {
	for _, x := range r.ranges {
		if pos < uint64(x.Blocks) {
			return x.LBA + pos, min(n, uint64(x.Blocks)-pos)
		}
		pos -= uint64(x.Blocks)
	}
	return 0, n // not reached: the caller has checked pos and n against r.blocks
}

// cmdRODTokenInfo is RECEIVE ROD TOKEN INFORMATION (SPC-4 §6.28).
func cmdRODTokenInfo(t *Task) {
	r := t.lu.copies.find(t, binary.BigEndian.Uint32(t.CDB[2:]), false)
	if r == nil {
		t.badCDB(2)
		return
	}
	b := t.data.get(volume.BufferSizes[0])
	t.reply(r.info.Load().Append(b[:0]), binary.BigEndian.Uint32(t.CDB[10:]))
}
