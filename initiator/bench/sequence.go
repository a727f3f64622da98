package bench

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Zones is zonemode=strided: a job stays in one zone until it has moved size
// bytes, then goes to the next. All in bytes.
//
//	|<── span ──>|<─ skip ─>|<── span ──>|<─ skip ─>|
//	  zone 0                  zone 1
//
// As in fio, zones go on behind the job's range to the volume's end, and begin
// again at the offset; the range only says how many bytes are moved.
type Zones struct {
	strided          bool
	mode             string // as written
	size, span, skip int64
}

// cursor is where a clone goes on when it draws no offset.
type cursor struct {
	from      int64        // start of the range, or of the zone
	pos       [datas]int64 // end of the last operation, per direction as in fio
	last      [datas]int64 // start of it; -1: none
	moved     int64        // bytes moved in this zone
	untilDraw int          // random with rw=…:N: operations until one is drawn
}

func (c *cursor) restart(base int64) {
	c.from, c.moved = base, 0
	for d := range c.pos {
		c.pos[d], c.last[d] = base, -1
	}
}

// follows reports whether the next operation follows the one before it.
func (c *cursor) follows(j *Job) bool {
	if !j.Random {
		return true
	}
	if c.untilDraw--; c.untilDraw > 0 {
		return true
	}
	c.untilDraw = j.SeqRun
	return false
}

// span is the length of the range, or of the zone.
func (p *pattern) span() int64 {
	if z := &p.job.Zones; z.strided {
		return min(z.span, p.total-p.cur.from)
	}
	return int64(p.units) * p.unit
}

// follow returns the operation behind the last one of its direction; rw=read:N
// adds N bytes to each offset, which may go backwards. The arithmetic is fio's,
// odd ends included: backwards from the start of a range goes to its end, and a
// hole that leads behind the volume's end leads to its start. ok=false ends the
// pass; off then tells where it would have gone.
func (p *pattern) follow(d dir, size int) (off int64, n int, ok bool) {
	j, c, span := p.job, &p.cur, p.span()
	if j.identical && j.Random && c.last[d] >= 0 {
		return c.last[d], int(min(int64(size), p.total-c.last[d])), true
	}
	add := j.SeqAdd
	if j.Random && j.TimeBased && c.pos[d] >= p.base+span {
		c.pos[d] = p.base
	}
	if c.pos[d] >= p.total {
		return c.pos[d], 0, false
	}
	if c.pos[d] == c.from && c.from > 0 && add < 0 {
		c.pos[d] = span
	}
	at := c.pos[d] - c.from
	if at != 0 && add != 0 {
		if at += add; at < 0 || at >= p.total {
			if at = c.from; add < 0 {
				at = span + add
			} else if j.Verify != VerifyNone {
				return off, 0, false // the next pass waits for the writes of this one
			}
		}
	}
	off = c.from + at
	if at < 0 || at >= span || off >= p.total {
		return off, 0, false
	}
	if add != 0 || j.SeqRun > 1 {
		return off, size, off+int64(size) <= p.total
	}
	return off, int(min(int64(size), span-at)), true
}

// setRW reads the direction and, behind a colon, fio's modifier: of a sequential
// load the bytes to add to each offset, of a random one how many operations go
// on from each offset drawn.
func setRW(j *Job, v string) error {
	name, arg, modified := strings.Cut(strings.ToLower(v), ":")
	kind, random := strings.CutPrefix(name, "rand")
	var on [datas]bool
	switch kind {
	case "read":
		on[dirRead] = true
	case "write":
		on[dirWrite] = true
	case "rw", "readwrite":
		on[dirRead], on[dirWrite] = true, true
	case "trim":
		on[dirTrim] = true
	case "trimwrite":
		return errors.New("would change the load, and is not offered: no operation waits for the trim of its block; a job that trims, and one with stonewall that writes, do both in order")
	default:
		return errors.New("expected read, write, randread, randwrite, rw, randrw, trim or randtrim")
	}
	run, add := 1, int64(0)
	if modified && random {
		n, err := strconv.Atoi(arg)
		if err != nil || n < 1 {
			return fmt.Errorf("expected a number of operations behind %s:", name)
		}
		run = n
	} else if modified {
		digits, back := strings.CutPrefix(arg, "-")
		n, err := parseBytes(digits, j.kbBase)
		if err != nil {
			return fmt.Errorf("expected bytes to add to each offset behind %s: (%w)", name, err)
		}
		if add = n; back {
			add = -n
		}
	}
	j.Dirs, j.Random, j.RWName, j.SeqRun, j.SeqAdd = on, random, name, run, add
	return nil
}

func setSequencer(j *Job, v string) error {
	switch strings.ToLower(v) {
	case "sequential":
		j.identical = false
	case "identical":
		j.identical = true
	default:
		return errors.New("expected sequential or identical")
	}
	return nil
}

func setZoneMode(j *Job, v string) error {
	switch v = strings.ToLower(v); v {
	case "none", "strided":
		j.Zones.mode = v
		return nil
	case "zbd":
		return errors.New("would change the load, and is not offered: the volume is no zoned device and has no write pointers")
	}
	return errors.New("expected none or strided")
}

func setAlign(j *Job, v string) error {
	return perDir(v, func(d dir, s string) error {
		n, err := blockSize(s, j.kbBase)
		j.Align[d] = int64(n)
		return err
	})
}

// noMap reports whether a block may be drawn again before all others were. Any
// other alignment than the block size does that, as in fio.
func (j *Job) noMap() bool {
	for d, on := range j.Dirs {
		if on && j.align(dir(d)) != int64(j.BS[d].Min) {
			return true
		}
	}
	return j.NoRandomMap || j.uneven()
}

// settleZones completes and checks the zones.
func (j *Job) settleZones(fail func(string, ...any) error) error {
	z := &j.Zones
	if z.strided = z.mode == "strided"; !z.strided {
		if z.size > 0 {
			return fail("zonesize needs zonemode=strided")
		}
		return nil
	}
	if z.span == 0 {
		z.span = z.size
	}
	unit := int64(j.minBS())
	switch {
	case z.size == 0:
		return fail("zonemode=strided needs a zonesize")
	case j.SeqAdd != 0 || j.SeqRun > 1:
		return fail("rw=%s:N together with zonemode=strided is not offered", j.RWName)
	case z.span < int64(j.maxBS()):
		return fail("a zone of %d bytes is smaller than one block of %d bytes", z.span, j.maxBS())
	case j.Random && !j.noMap() && (z.span%unit != 0 || z.size%unit != 0):
		return fail("zonesize %d and zonerange %d must be multiples of the smallest block, %d bytes", z.size, z.span, unit)
	}
	return nil
}

// strays reports whether operations would begin inside a block of the volume.
func (j *Job) strays(block int64) bool {
	z := j.Zones
	for d, on := range j.Dirs {
		if on && j.align(dir(d))%block != 0 {
			return true
		}
	}
	return j.SeqAdd%block != 0 || z.strided && (z.size%block != 0 || z.span%block != 0 || z.skip%block != 0)
}

// checkSequence refuses what two writes of one block in flight could make of a
// verification.
func (j *Job) checkSequence(fail func(string, ...any) error) error {
	unit := int64(j.minBS())
	switch {
	case j.Verify == VerifyNone || !j.writes():
		return nil
	case j.Zones.strided:
		return fail("verify cannot be used with zonemode=strided while writing: a zone may be written again before it was read")
	case j.SeqAdd%unit != 0:
		return fail("verify needs rw=%s:%d to be a multiple of the block size, %d bytes", j.RWName, j.SeqAdd, unit)
	case j.SeqRun > 1 || j.SeqAdd < 0:
		return fail("verify cannot be used with rw=%s:N of this kind: two writes of one block could overlap", j.RWName)
	}
	return nil
}
