package thin

import (
	"fmt"
	"sort"
)

// node is a view of a B-tree node:
//
//	 0      4       8          16           20            24           28        32
//	+------+-------+----------+------------+-------------+------------+---------+------
//	| csum | flags | block nr | nr entries | max entries | value size | padding | keys[max] 8, values[max]
//	+------+-------+----------+------------+-------------+------------+---------+------
//
// flags: 1 internal (values are child blocks), 2 leaf. Keys are sorted; the key
// of a child is at most the smallest key in it.
type node []byte

const (
	flagInternal = 1
	flagLeaf     = 2
	nodeHeader   = 32
)

// maxEntries is what fits, rounded down to a multiple of 3.
func maxEntries(valueSize int) int { return (blockSize - nodeHeader) / (8 + valueSize) / 3 * 3 }

func (n node) init(flags uint32, valueSize int) {
	clear(n)
	le.PutUint32(n[4:], flags)
	le.PutUint32(n[20:], uint32(maxEntries(valueSize)))
	le.PutUint32(n[24:], uint32(valueSize))
}

func (n node) leaf() bool     { return le.Uint32(n[4:])&flagLeaf != 0 }
func (n node) len() int       { return int(le.Uint32(n[16:])) }
func (n node) max() int       { return int(le.Uint32(n[20:])) }
func (n node) valueSize() int { return int(le.Uint32(n[24:])) }
func (n node) setLen(k int)   { le.PutUint32(n[16:], uint32(k)) }
func (n node) full() bool     { return n.len() == n.max() }

func (n node) key(i int) uint64       { return le.Uint64(n[nodeHeader+8*i:]) }
func (n node) setKey(i int, k uint64) { le.PutUint64(n[nodeHeader+8*i:], k) }

func (n node) value(i int) []byte {
	vs := n.valueSize()
	at := nodeHeader + 8*n.max() + vs*i
	return n[at : at+vs]
}

func (n node) child(i int) uint64       { return le.Uint64(n.value(i)) }
func (n node) setChild(i int, c uint64) { le.PutUint64(n.value(i), c) }

// check verifies a node from disk before any of it is used. valueSize is that
// of the tree's leaves.
func (n node) check(valueSize int) error {
	flags := le.Uint32(n[4:])
	want := valueSize
	switch flags {
	case flagInternal:
		want = 8
	case flagLeaf:
	default:
		return fmt.Errorf("%w: node with flags %#x", ErrCorrupt, flags)
	}
	if n.valueSize() != want || n.max() < 3 || n.max() > (blockSize-nodeHeader)/(8+want) || n.len() > n.max() || flags == flagInternal && n.len() == 0 {
		return fmt.Errorf("%w: node with %d of %d entries of %d bytes", ErrCorrupt, n.len(), n.max(), n.valueSize())
	}
	return nil
}

// ordered reports whether the keys ascend. Blocks are asked once, when they come
// from disk.
func (n node) ordered() bool {
	k := min(uint64(le.Uint32(n[16:])), (blockSize-nodeHeader)/8)
	for i := 1; i < int(k); i++ {
		if n.key(i-1) >= n.key(i) {
			return false
		}
	}
	return true
}

// find returns the first entry whose key is at least k.
func (n node) find(k uint64) int {
	return sort.Search(n.len(), func(i int) bool { return n.key(i) >= k })
}

// descend returns the child that k belongs to: the last with a key of at most k.
func (n node) descend(k uint64) int {
	i := sort.Search(n.len(), func(i int) bool { return n.key(i) > k })
	return max(i-1, 0)
}

func (n node) insert(i int, k uint64, v []byte) {
	l := n.len()
	copy(n[nodeHeader+8*(i+1):nodeHeader+8*(l+1)], n[nodeHeader+8*i:nodeHeader+8*l])
	vs, base := n.valueSize(), nodeHeader+8*n.max()
	copy(n[base+vs*(i+1):base+vs*(l+1)], n[base+vs*i:base+vs*l])
	n.setLen(l + 1)
	n.setKey(i, k)
	copy(n.value(i), v)
}

func (n node) remove(i int) {
	l := n.len()
	copy(n[nodeHeader+8*i:], n[nodeHeader+8*(i+1):nodeHeader+8*l])
	vs, base := n.valueSize(), nodeHeader+8*n.max()
	copy(n[base+vs*i:], n[base+vs*(i+1):base+vs*l])
	n.setLen(l - 1)
}

// moveRight takes the last k entries of n to the front of its right neighbour.
func (n node) moveRight(right node, k int) {
	for ; k > 0; k-- {
		i := n.len() - 1
		right.insert(0, n.key(i), n.value(i))
		n.remove(i)
	}
}

// moveLeft takes the first k entries of n to the back of its left neighbour.
func (n node) moveLeft(left node, k int) {
	for ; k > 0; k-- {
		left.insert(left.len(), n.key(0), n.value(0))
		n.remove(0)
	}
}
