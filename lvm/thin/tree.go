package thin

import (
	"fmt"

	"softiser/blockdev"
)

// tree is the type of a B-tree: how large its values are and what becomes of
// what they refer to when a leaf is copied or dropped. Roots are passed around:
// a change returns the new one.
type tree struct {
	blocks    *blocks
	valueSize int
	inc, dec  func(v []byte) error // nil: values refer to nothing
}

const maxHeight = 20 // far more than the format can fill

func (t *tree) read(nr uint64) (node, error) { return t.get(nr, blockdev.Wait) }

func (t *tree) get(nr uint64, m blockdev.Mode) (node, error) {
	b, err := t.blocks.get(nr, xorNode, m)
	if err != nil {
		return nil, err
	}
	n := node(b.data)
	if err := n.check(t.valueSize); err != nil {
		return nil, fmt.Errorf("block %d: %w", nr, err)
	}
	return n, nil
}

// empty makes a tree without entries.
func (t *tree) empty() (uint64, error) {
	b, err := t.blocks.add(xorNode)
	if err != nil {
		return 0, err
	}
	node(b.data).init(flagLeaf, t.valueSize)
	return b.nr, nil
}

// shadow makes a node that may be changed; what a shared one refers to gets
// another reference.
func (t *tree) shadow(nr uint64) (*block, node, error) {
	if _, err := t.read(nr); err != nil {
		return nil, nil, err
	}
	b, shared, err := t.blocks.shadow(nr, xorNode)
	if err != nil {
		return nil, nil, err
	}
	n := node(b.data)
	if shared {
		err = t.each(n, t.inc, t.blocks.counts.inc)
	}
	return b, n, err
}

func (t *tree) each(n node, value func([]byte) error, child func(uint64) error) error {
	for i := range n.len() {
		var err error
		if !n.leaf() {
			err = child(n.child(i))
		} else if value != nil {
			err = value(n.value(i))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// lookup returns the value of key, which must not be changed, or nil.
func (t *tree) lookup(root, key uint64) ([]byte, error) {
	return t.find(root, key, blockdev.Wait)
}

// find is lookup; with NoWait it is ErrWouldBlock where a node is not in memory.
func (t *tree) find(root, key uint64, m blockdev.Mode) ([]byte, error) {
	for range maxHeight {
		n, err := t.get(root, m)
		if err != nil {
			return nil, err
		}
		if n.leaf() {
			if i := n.find(key); i < n.len() && n.key(i) == key {
				return n.value(i), nil
			}
			return nil, nil
		}
		root = n.child(n.descend(key))
	}
	return nil, fmt.Errorf("%w: tree is deeper than %d", ErrCorrupt, maxHeight)
}

// walk calls f for the entries with keys of at least from, in order, until it
// returns false.
func (t *tree) walk(root, from uint64, f func(key uint64, v []byte) bool) error {
	_, err := t.walkNode(root, from, f, 0, anyKey)
	return err
}

// span is the keys that a node may hold, first and last. Children have spans
// that do not overlap and are never empty, so that a walk reads no node twice:
// damaged metadata whose nodes refer to each other would keep it busy for ever.
type span struct{ first, last uint64 }

var anyKey = span{0, 1<<64 - 1}

// child is the span of child i of n.
func (s span) child(n node, i int) span {
	c := span{n.key(i), s.last}
	if i+1 < n.len() {
		c.last = n.key(i+1) - 1
	}
	return c
}

func (s span) check(n node, nr uint64) error {
	k := n.len()
	if k == 0 && s != anyKey {
		return fmt.Errorf("%w: block %d is an empty node", ErrCorrupt, nr)
	}
	if k > 0 && (n.key(0) < s.first || n.key(k-1) > s.last) {
		return fmt.Errorf("%w: block %d has keys from %d to %d, its parent says from %d to %d", ErrCorrupt, nr, n.key(0), n.key(k-1), s.first, s.last)
	}
	return nil
}

// walkNode is walk below block nr, whose keys must lie in the span that its parent gives it.
func (t *tree) walkNode(nr, from uint64, f func(uint64, []byte) bool, depth int, in span) (bool, error) {
	if depth > maxHeight {
		return false, fmt.Errorf("%w: tree is deeper than %d", ErrCorrupt, maxHeight)
	}
	n, err := t.read(nr)
	if err == nil {
		err = in.check(n, nr)
	}
	if err != nil {
		return false, err
	}
	if n.leaf() {
		for i := n.find(from); i < n.len(); i++ {
			if !f(n.key(i), n.value(i)) {
				return false, nil
			}
		}
		return true, nil
	}
	for i := n.descend(from); i < n.len(); i++ {
		if more, err := t.walkNode(n.child(i), from, f, depth+1, in.child(n, i)); err != nil || !more {
			return false, err
		}
	}
	return true, nil
}

// insert sets the value of key and returns the new root. A value that was
// there is dropped.
func (t *tree) insert(root, key uint64, v []byte) (uint64, error) {
	b, right, err := t.insertAt(root, key, v, 0)
	if err != nil {
		return 0, err
	}
	if right == nil {
		return b.nr, nil
	}
	top, err := t.blocks.add(xorNode)
	if err != nil {
		return 0, err
	}
	n := node(top.data)
	n.init(flagInternal, 8)
	for i, c := range []*block{b, right} {
		n.insert(i, node(c.data).key(0), u64(c.nr))
	}
	return top.nr, nil
}

func u64(v uint64) []byte { return le.AppendUint64(nil, v) }

// insertAt inserts below nr. right is the second half if the node was split.
func (t *tree) insertAt(nr, key uint64, v []byte, depth int) (b, right *block, err error) {
	if depth > maxHeight {
		return nil, nil, fmt.Errorf("%w: tree is deeper than %d", ErrCorrupt, maxHeight)
	}
	b, n, err := t.shadow(nr)
	if err != nil {
		return nil, nil, err
	}
	if n.leaf() {
		i := n.find(key)
		if i < n.len() && n.key(i) == key {
			if t.dec != nil {
				if err := t.dec(n.value(i)); err != nil {
					return nil, nil, err
				}
			}
			copy(n.value(i), v)
			return b, nil, nil
		}
		right, err = t.put(b, i, key, v)
		return b, right, err
	}
	i := n.descend(key)
	if key < n.key(i) {
		n.setKey(i, key)
	}
	c, cr, err := t.insertAt(n.child(i), key, v, depth+1)
	if err != nil {
		return nil, nil, err
	}
	n.setChild(i, c.nr)
	if cr != nil {
		right, err = t.put(b, i+1, node(cr.data).key(0), u64(cr.nr))
	}
	return b, right, err
}

// put inserts an entry at i, splitting a full node. Appending at the very end
// leaves the left half two thirds full, so that sequential filling does not
// waste half of every node.
func (t *tree) put(b *block, i int, key uint64, v []byte) (*block, error) {
	n := node(b.data)
	if !n.full() {
		n.insert(i, key, v)
		return nil, nil
	}
	right, err := t.blocks.add(xorNode)
	if err != nil {
		return nil, err
	}
	r := node(right.data)
	r.init(le.Uint32(n[4:]), n.valueSize())
	k := n.len() / 2
	if i == n.len() {
		k = n.len() / 3
	}
	left := n.len() - k
	n.moveRight(r, k)
	if i <= left {
		n.insert(i, key, v)
	} else {
		r.insert(i-left, key, v)
	}
	return right, nil
}

// remove deletes key and returns the new root; found is false if it was not
// there (and the tree may have been copied).
func (t *tree) remove(root, key uint64) (newRoot uint64, found bool, err error) {
	if v, err := t.lookup(root, key); err != nil || v == nil {
		return root, false, err
	}
	b, err := t.removeAt(root, key)
	if err != nil {
		return 0, false, err
	}
	// A root with one child gives way to it.
	for n := node(b.data); !n.leaf() && n.len() == 1; n = node(b.data) {
		child := n.child(0)
		if err := t.blocks.counts.inc(child); err != nil {
			return 0, false, err
		}
		if err := t.release(b.nr, 0); err != nil {
			return 0, false, err
		}
		if b, err = t.blocks.read(child, xorNode); err != nil {
			return 0, false, err
		}
		if err := node(b.data).check(t.valueSize); err != nil {
			return 0, false, err
		}
	}
	return b.nr, true, nil
}

// removeAt removes a key below block nr and joins nodes that have become too small. It returns the copy of the block.
func (t *tree) removeAt(nr, key uint64) (*block, error) {
	b, n, err := t.shadow(nr)
	if err != nil {
		return nil, err
	}
	if n.leaf() {
		i := n.find(key)
		if t.dec != nil {
			if err := t.dec(n.value(i)); err != nil {
				return nil, err
			}
		}
		n.remove(i)
		return b, nil
	}
	i := n.descend(key)
	c, err := t.removeAt(n.child(i), key)
	if err != nil {
		return nil, err
	}
	n.setChild(i, c.nr)
	if cn := node(c.data); cn.len() < cn.max()/3 && n.len() > 1 {
		err = t.rebalance(n, i, c)
	}
	return b, err
}

// rebalance fills child i of n, which has become too small, from a neighbour,
// or joins the two: every node but the root stays at least a third full.
func (t *tree) rebalance(n node, i int, child *block) error {
	at := i - 1 // the left neighbour, where there is one
	if i == 0 {
		at = 1
	}
	neighbour, _, err := t.shadow(n.child(at))
	if err != nil {
		return err
	}
	n.setChild(at, neighbour.nr)
	lb, rb := neighbour, child
	if at > i {
		lb, rb = child, neighbour
	}
	ri := max(i, at) // of rb in n
	left, right := node(lb.data), node(rb.data)
	total := left.len() + right.len()
	if total <= 2*(left.max()/3) {
		right.moveLeft(left, right.len())
		n.remove(ri)
		// Its entries live on in the left node.
		return t.blocks.drop(rb.nr)
	}
	if want := total / 2; left.len() > want {
		left.moveRight(right, left.len()-want)
	} else {
		right.moveLeft(left, want-left.len())
	}
	n.setKey(ri, right.key(0))
	return nil
}

// release takes away a reference to a tree; if it was the last, everything
// below loses one too.
func (t *tree) release(nr uint64, depth int) error {
	if depth > maxHeight {
		return fmt.Errorf("%w: tree is deeper than %d", ErrCorrupt, maxHeight)
	}
	if t.blocks.counts.get(nr) > 1 {
		return t.blocks.drop(nr)
	}
	n, err := t.read(nr)
	if err != nil {
		return err
	}
	if err := t.each(n, t.dec, func(c uint64) error { return t.release(c, depth+1) }); err != nil {
		return err
	}
	return t.blocks.drop(nr)
}
