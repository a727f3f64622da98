package thin

import (
	"fmt"
)

// Change is a range in which two devices differ, Off and Len in bytes.
type Change struct {
	Off, Len int64
	Data     bool // the second device has something mapped there; else it reads as zeroes
}

// Diff lists the ranges, in order, in which device b differs from device a, at
// the granularity of the pool's blocks and by identity of the blocks: parts of
// the trees that both share are not even read. Everything is committed first.
func (p *Pool) Diff(a, b uint64) ([]Change, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.commitLocked(); err != nil {
		return nil, err
	}
	var roots [2]uint64
	for i, id := range []uint64{a, b} {
		v, err := p.top.lookup(p.sb.mapping, id)
		if err != nil || v == nil {
			return nil, orNoDevice(err, id)
		}
		roots[i] = le.Uint64(v)
	}
	var out []Change
	emit := func(vb uint64, data bool) {
		at := int64(vb) * p.chunk
		if k := len(out); k > 0 && out[k-1].Data == data && out[k-1].Off+out[k-1].Len == at {
			out[k-1].Len += p.chunk
			return
		}
		out = append(out, Change{at, p.chunk, data})
	}
	ca, err := newCursor(&p.maps, roots[0])
	if err != nil {
		return nil, err
	}
	cb, err := newCursor(&p.maps, roots[1])
	if err != nil {
		return nil, err
	}
	return out, compare(ca, cb, emit)
}

// compare walks two mapping trees at once and emits the blocks in which they differ;
// subtrees that they share are skipped.
func compare(a, b *cursor, emit func(vb uint64, data bool)) error {
	for {
		leaves(a, b, emit)
		x, okA := a.peek()
		y, okB := b.peek()
		switch {
		case !okA && !okB:
			return nil
		case okA && okB && x.key == y.key && x.height == y.height && x.value == y.value:
			// The same entry, or the same subtree.
			a.skip()
			b.skip()
		case okA && x.height > 0 && (!okB || x.key < y.key || x.key == y.key && x.height >= y.height):
			if err := a.descend(); err != nil {
				return err
			}
		case okB && y.height > 0 && (!okA || y.key <= x.key):
			if err := b.descend(); err != nil {
				return err
			}
		case okA && (!okB || x.key < y.key):
			emit(x.key, false)
			a.skip()
		case okB && (!okA || y.key < x.key):
			emit(y.key, true)
			b.skip()
		default: // the same key, both entries
			if x.value>>24 != y.value>>24 {
				emit(y.key, true)
			}
			a.skip()
			b.skip()
		}
	}
}

// leaves compares two leaves as far as they go together: most of the time is
// spent here.
func leaves(a, b *cursor, emit func(vb uint64, data bool)) {
	if len(a.stack) == 0 || len(b.stack) == 0 {
		return
	}
	x, y := &a.stack[len(a.stack)-1], &b.stack[len(b.stack)-1]
	if x.height != 0 || y.height != 0 {
		return
	}
	nx, ny := x.n.len(), y.n.len()
	for x.i < nx && y.i < ny {
		kx, ky := x.n.key(x.i), y.n.key(y.i)
		switch {
		case kx < ky:
			emit(kx, false)
			x.i++
		case ky < kx:
			emit(ky, true)
			y.i++
		default:
			if le.Uint64(x.n.value(x.i))>>24 != le.Uint64(y.n.value(y.i))>>24 {
				emit(ky, true)
			}
			x.i++
			y.i++
		}
	}
}

// cursor walks a tree at the coarsest level that is asked for.
type cursor struct {
	tree  *tree
	stack []frame
	bufs  [maxHeight + 1][]byte // by height: blocks that the cache does not hold
}

// read reads a node past the cache, which a walk over everything would only
// empty of what is of use. Everything is committed, so the device has it.
func (c *cursor) read(nr uint64, height int) (node, error) {
	t := c.tree.blocks
	t.mu.RLock()
	b := t.cache[nr]
	t.mu.RUnlock()
	if b != nil || height < 0 || height > maxHeight {
		return c.tree.read(nr)
	}
	if c.bufs[height] == nil {
		c.bufs[height] = make([]byte, blockSize)
	}
	p := c.bufs[height]
	if err := t.fetch(nr, xorNode, p); err != nil {
		return nil, err
	}
	n := node(p)
	if err := n.check(c.tree.valueSize); err != nil {
		return nil, fmt.Errorf("block %d: %w", nr, err)
	}
	return n, nil
}

type frame struct {
	n      node
	i      int
	height int // of the entries: 0 in a leaf
	in     span
}

// entry is a leaf's mapping (height 0) or a subtree.
type entry struct {
	key, value uint64
	height     int
}

func newCursor(t *tree, root uint64) (*cursor, error) {
	height, nr := 0, root
	for ; height <= maxHeight; height++ {
		n, err := t.read(nr)
		if err != nil {
			return nil, err
		}
		if n.leaf() {
			break
		}
		nr = n.child(0)
	}
	n, err := t.read(root)
	if err != nil {
		return nil, err
	}
	return &cursor{tree: t, stack: []frame{{n, 0, height, anyKey}}}, nil
}

func (c *cursor) peek() (entry, bool) {
	for len(c.stack) > 0 {
		f := &c.stack[len(c.stack)-1]
		if f.i < f.n.len() {
			return entry{f.n.key(f.i), le.Uint64(f.n.value(f.i)), f.height}, true
		}
		c.stack = c.stack[:len(c.stack)-1]
	}
	return entry{}, false
}

func (c *cursor) skip() { c.stack[len(c.stack)-1].i++ }

func (c *cursor) descend() error {
	f := &c.stack[len(c.stack)-1]
	nr, in := f.n.child(f.i), f.in.child(f.n, f.i)
	n, err := c.read(nr, f.height-1)
	if err == nil {
		err = in.check(n, nr)
	}
	if err != nil {
		return err
	}
	f.i++
	if n.leaf() != (f.height == 1) {
		return fmt.Errorf("%w: tree is not balanced", ErrCorrupt)
	}
	c.stack = append(c.stack, frame{n, 0, f.height - 1, in})
	return nil
}
