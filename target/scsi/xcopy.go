package scsi

import (
	"encoding/binary"

	"softiser/internal/spc"

	"softiser/target/volume"
)

// cmdExtendedCopy is EXTENDED COPY(LID1) (SPC-4 §6.4) between block devices of this
// target: identification descriptors (E4h) name the units, block to block
// segments (02h, 0Ah) the blocks.
func cmdExtendedCopy(t *Task) {
	n := binary.BigEndian.Uint32(t.CDB[10:])
	if n == 0 {
		t.good()
		return
	}
	if n < spc.CopyHeaderLen || n > 64<<10 {
		t.illegal(spc.ASCParameterListLength)
		return
	}
	t.data.fetchParam(int(n), func(t *Task) { copyApart(t, extendedCopyJob) })
}

// copySegment is a checked segment: byte ranges of two units.
type copySegment struct {
	src, dst *LU
	from, to int64
	n        int64
}

// extendedCopyJob parses the parameter list of EXTENDED COPY (LID1 and LID4) and starts
// its segments.
func extendedCopyJob(t *Task) {
	p := t.data.param()
	h, err := spc.ParseCopyHeader(p)
	if err != nil {
		t.illegal(spc.ASCParameterListLength)
		return
	}
	targets, segs := int64(h.TargetLen), int64(h.SegmentLen)
	if targets+segs > maxCopyList || targets+segs+int64(h.Inline) > int64(len(p)-spc.CopyHeaderLen) {
		t.illegal(spc.ASCParameterListLength)
		return
	}
	if h.Inline != 0 {
		t.illegal(spc.ASCInlineDataLength)
		return
	}
	if h.ListIDUsage == 1 || h.ListIDUsage == 3 && h.ListID != 0 {
		t.badParam(1)
		return
	}
	if targets+segs == 0 {
		t.good()
		return
	}
	r := &copyResult{}
	if h.ListIDUsage != 3 {
		if r = t.lu.copies.begin(t, uint32(h.ListID)); r == nil {
			t.illegal(spc.ASCOperationInProgress)
			return
		}
	}
	body := p[spc.CopyHeaderLen:]
	c := newCopying(t)
	done, s := extendedCopy(t, c, body[:targets], body[targets:targets+segs])
	r.finish(s, done, nil)
	c.end()
	copied(t, s)
}

// copied ends a task whose copy has ended, with s after a failure.
func copied(t *Task, s *spc.Sense) {
	switch {
	case t.Aborted():
		t.end()
	case s != nil:
		t.check(s)
	default:
		t.committed()
	}
}

func badCopy(a spc.ASC) *spc.Sense { return &spc.Sense{Key: spc.KeyIllegalRequest, ASC: a} }

// extendedCopy checks all descriptors, then copies segment after segment. It
// returns the blocks copied and, after a failure, the sense.
func extendedCopy(t *Task, c *copying, targets, segs []byte) (uint64, *spc.Sense) {
	if len(targets)%spc.CopyTargetLen != 0 {
		return 0, badCopy(spc.ASCParameterListLength)
	}
	if len(targets)/spc.CopyTargetLen > maxCopyTargets {
		return 0, badCopy(spc.ASCCopyTooManyTargets)
	}
	var units []*LU
	for ; len(targets) > 0; targets = targets[spc.CopyTargetLen:] {
		lu, s := copyTarget(t, targets[:spc.CopyTargetLen])
		if s != nil {
			return 0, s
		}
		if lu != nil && !c.touch(lu) {
			lu = nil
		}
		units = append(units, lu)
	}
	var jobs []copySegment
	for len(segs) > 0 {
		seg, n, known, err := spc.ParseCopySegment(segs)
		switch {
		case err != nil:
			return 0, badCopy(spc.ASCParameterListLength)
		case !known:
			return 0, badCopy(spc.ASCCopySegmentType)
		case len(jobs) == maxCopySegments:
			return 0, badCopy(spc.ASCCopyTooManySegments)
		}
		segs = segs[n:]
		j, s := c.plan(&seg, units)
		if s != nil {
			return 0, s
		}
		jobs = append(jobs, j)
	}
	done := int64(0)
	for i := range jobs {
		j := &jobs[i]
		n, dir, err := c.Bytes(j.src.vol, j.from, j.dst.vol, j.to, j.n)
		done += n
		if err != nil {
			s := copySense(err, dir)
			if s.Key != spc.KeyAborted {
				s.Key = spc.KeyCopyAborted
				j.explain(s, i, n)
			}
			return uint64(done) >> t.lu.geo().Shift, s
		}
	}
	return uint64(done) >> t.lu.geo().Shift, nil
}

// explain says in sense data at which segment a copy has failed and, if something of that one has been written, how much is
// missing: what has been written from its first block on without a gap is not, and nothing else (SPC-3 §6.3.3). done is how much
// has been written wherever.
func (j *copySegment) explain(s *spc.Sense, index int, done int64) {
	s.SpecificValid, s.Specific = true, uint64(index)
	if done == 0 {
		return
	}
	if volume.Backwards(j.src.vol, j.from, j.dst.vol, j.to, j.n) {
		done = 0
	}
	s.InfoValid, s.Info = true, uint64(j.n-done)>>j.dst.geo().Shift
}

// copyTarget finds the unit of a target descriptor; nil when there is none, which
// matters only to a segment that uses it.
func copyTarget(t *Task, b []byte) (*LU, *spc.Sense) {
	if b[0] != spc.CopyTargetIdent {
		return nil, badCopy(spc.ASCCopyTargetType)
	}
	n := int(b[7])
	if b[1]&0x1F != 0 || n > 20 {
		return nil, badCopy(spc.ASCInvalidFieldInParam)
	}
	d := spc.Designator{CodeSet: b[4] & 0xF, Association: b[5] >> 4 & 3, Type: b[5] & 0xF, ID: b[8 : 8+n]}
	lu := t.Nexus.findUnit(&d)
	size := uint32(b[29])<<16 | uint32(b[30])<<8 | uint32(b[31])
	if lu != nil && size != uint32(lu.geo().Info.BlockSize) {
		return nil, badCopy(spc.ASCInvalidFieldInParam)
	}
	return lu, nil
}

// plan checks a segment against its units.
func (c *copying) plan(s *spc.CopySegment, units []*LU) (copySegment, *spc.Sense) {
	gone := &spc.Sense{Key: spc.KeyCopyAborted, ASC: spc.ASCCopyTargetGone}
	if int(s.Src) >= len(units) || int(s.Dst) >= len(units) {
		return copySegment{}, gone
	}
	j := copySegment{src: units[s.Src], dst: units[s.Dst]}
	if j.src == nil || j.dst == nil || !c.may(j.src, volume.Reads) || !c.may(j.dst, volume.Writes) {
		return copySegment{}, gone
	}
	sg, dg := j.src.geo(), j.dst.geo()
	j.n = int64(s.Bytes)
	if s.Type == spc.CopyBlockToBlock {
		shift := sg.Shift
		if s.DC {
			shift = dg.Shift
		}
		j.n = int64(s.Blocks) << shift
	}
	unaligned := (j.n|int64(s.SrcOff))&int64(sg.Info.BlockSize-1) != 0 || (j.n|int64(s.DstOff))&int64(dg.Info.BlockSize-1) != 0
	if unaligned || j.n > maxCopyBytes {
		return copySegment{}, badCopy(spc.ASCInvalidFieldInParam)
	}
	var ok1, ok2 bool
	j.from, ok1 = span(sg, s.SrcLBA, int64(s.SrcOff), j.n)
	j.to, ok2 = span(dg, s.DstLBA, int64(s.DstOff), j.n)
	if !ok1 || !ok2 {
		return copySegment{}, &spc.Sense{Key: spc.KeyCopyAborted, ASC: spc.ASCUnreachableCopy}
	}
	return j, nil
}

// span returns the byte offset of n bytes at off behind an LBA, if they lie on
// the medium.
func span(g *volume.Geometry, lba uint64, off, n int64) (int64, bool) {
	if lba > g.Blocks {
		return 0, false
	}
	at := int64(lba)<<g.Shift + off
	return at, at <= g.Info.Size && n <= g.Info.Size-at
}
