package blockio

import (
	"slices"
	"sync"
	"sync/atomic"
)

// Cache is the account of what a volume has acknowledged and no flush has made durable
// yet. A target with a volatile cache may lose that; when it comes back from a power
// failure, the next flush finds nothing to do and would say that all is well. So that
// nobody takes this for "durable", the next flush of everybody fails after a loss.
//
// A target that can tells which life its cache is in, its epoch: two paths that tell the
// same epoch lead to one cache, and a flush over one covers the writes of the other.
// Targets that do not tell are taken to have one cache, zero being its epoch: arrays
// that offer several paths keep their caches coherent.
//
// The zero value is ready for use. All paths of a volume share one.
type Cache struct {
	told atomic.Uint32 // of losses: a flush of somebody has failed because of them

	mu     sync.Mutex // guards the rest; a leaf
	losses uint32     // times that a cache was lost with something in it
	epochs []*Epoch   // those of paths, and those that hold something
	users  map[*Flusher]struct{}
	missed missed
}

// missed is what users have ended without being told of: somebody who begins later may be one
// of them, who comes again and asks for what it has written to be made durable.
type missed struct {
	any   bool
	told  uint32 // losses that each of them knew of
	times uint32 // that something was missed
}

// Epoch is one life of one cache.
type Epoch struct {
	id      [16]byte
	account *Cache
	written atomic.Uint64 // commands acknowledged that wrote into the cache
	safe    uint64        // of written: durable, or given up as lost; guarded by account.mu
	left    uint64        // of written, when a user ended whose part no flush had covered; guarded by account.mu
	paths   int           // that lead to it now; guarded by account.mu
}

// Flusher is one of several users of a volume who do not know of each other, such as the
// clients of an NBD server. A loss of the target's cache fails one flush of each of
// them, because what one of them was told no other one knows. Requests name it; those
// that do not are all of one user.
type Flusher struct {
	account *Cache        // nil: a user of none
	told    atomic.Uint32 // of the volume's losses
	written atomic.Uint64 // its commands that were acknowledged and wrote into a cache
	safe    uint64        // of written: what a flush of its own has covered, or was told as lost; guarded by account.mu
	heir    uint32        // missed.times, when it began; 0: it has not taken over what others had missed
}

// NewFlusher returns a user who begins now. What somebody has been told of before does not
// concern it, unless somebody else has not, who may have lost something: it may be the same
// program over another connection. The user has to be ended.
func (c *Cache) NewFlusher() *Flusher {
	c.mu.Lock()
	defer c.mu.Unlock()
	told := c.told.Load()
	for u := range c.users {
		if u.holds() {
			told = min(told, u.told.Load())
		}
	}
	f := &Flusher{account: c}
	if c.missed.any {
		told, f.heir = min(told, c.missed.told), c.missed.times
	}
	f.told.Store(told)
	if c.users == nil {
		c.users = map[*Flusher]struct{}{}
	}
	c.users[f] = struct{}{}
	return f
}

// holds reports whether the user has written what no flush of its own has covered. The caller
// holds account.mu.
func (f *Flusher) holds() bool { return f.written.Load() != f.safe }

// End takes a user away who asks for nothing any more.
func (f *Flusher) End() {
	if f == nil || f.account == nil {
		return
	}
	c := f.account
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.users, f)
	if !f.holds() {
		return
	}
	if told := f.told.Load(); told != c.losses {
		c.miss(told)
	}
	for _, e := range c.epochs {
		e.left = e.written.Load()
	}
}

// miss enters that a user who knew of so many losses has ended.
func (c *Cache) miss(told uint32) {
	if c.missed.any {
		told = min(told, c.missed.told)
	}
	c.missed = missed{any: true, told: told, times: c.missed.times + 1}
}

// Told is how many losses the user has been told of.
func (f *Flusher) Told() uint32 {
	if f == nil {
		return 0
	}
	return f.told.Load()
}

// Resume makes a new user one who has been told of so many losses in another process, and may
// have written there.
func (f *Flusher) Resume(told uint32) *Flusher {
	f.told.Store(told)
	f.written.Store(1)
	f.heir = 0 // it is no new one
	return f
}

// CarriedCache is what goes of a Cache to another process.
type CarriedCache struct {
	Told   uint32         `json:"told"`
	Losses uint32         `json:"losses"`
	Epochs []CarriedEpoch `json:"epochs,omitempty"`
	Missed *uint32        `json:"missed,omitempty"` // losses that users knew of who have ended and have lost something since
}

// CarriedEpoch is what a cache holds in one of its lives.
type CarriedEpoch struct {
	ID   [16]byte `json:"id"`
	Held uint64   `json:"held"`           // commands that no flush has made durable
	Left bool     `json:"left,omitempty"` // some of them are those of users who have ended
}

// Carry returns what the account says.
func (c *Cache) Carry() CarriedCache {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := CarriedCache{Told: c.told.Load(), Losses: c.losses}
	for _, e := range c.epochs {
		k.Epochs = append(k.Epochs, CarriedEpoch{e.id, e.written.Load() - e.safe, e.left > e.safe})
	}
	if told := c.missed.told; c.missed.any {
		k.Missed = &told
	}
	return k
}

// ResumeCache returns an account that says what that of another process said. No path leads
// to its epochs yet.
func ResumeCache(k CarriedCache) *Cache {
	c := &Cache{losses: k.Losses}
	c.told.Store(k.Told)
	for _, x := range k.Epochs {
		e := &Epoch{id: x.ID, account: c}
		e.written.Store(x.Held)
		if x.Left {
			e.left = x.Held
		}
		c.epochs = append(c.epochs, e)
	}
	if k.Missed != nil {
		c.miss(*k.Missed)
	}
	return c
}

// Only takes e, to which the only path to the volume leads now, for what has become of all other epochs: what
// they hold is lost, as with Look.
func (c *Cache) Only(e *Epoch) (lost bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, o := range c.epochs {
		switch {
		case o == e || o.paths > 0:
		case o.Tells():
			lost = o.drop() || lost
		default:
			o.pour(e)
		}
	}
	c.epochs = slices.DeleteFunc(c.epochs, func(o *Epoch) bool { return o.paths == 0 && o.written.Load() == o.safe })
	return lost
}

// Enter returns the epoch id, to which a path leads from now on; Leave must follow.
func (c *Cache) Enter(id [16]byte) *Epoch {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.enter(id)
}

func (c *Cache) enter(id [16]byte) *Epoch {
	i := slices.IndexFunc(c.epochs, func(e *Epoch) bool { return e.id == id })
	if i < 0 {
		i = len(c.epochs)
		c.epochs = append(c.epochs, &Epoch{id: id, account: c})
	}
	c.epochs[i].paths++
	return c.epochs[i]
}

// Leave ends that. What the epoch still holds stays in the account.
func (e *Epoch) Leave() {
	c := e.account
	c.mu.Lock()
	defer c.mu.Unlock()
	e.leave()
}

func (e *Epoch) leave() {
	c := e.account
	if e.paths--; e.paths == 0 && e.written.Load() == e.safe {
		c.epochs = slices.DeleteFunc(c.epochs, func(x *Epoch) bool { return x == e })
	}
}

// Look takes what a path that led to e tells now: its epoch is returned, and whether
// something was lost with the one before. A target that has begun to tell has lost
// nothing by that.
func (e *Epoch) Look(id [16]byte) (now *Epoch, lost bool) {
	c := e.account
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.id == id {
		return e, false
	}
	if now = c.enter(id); e.id != [16]byte{} {
		lost = e.drop()
	} else {
		e.pour(now)
	}
	e.leave()
	return now, lost
}

// pour has into hold what e does.
func (e *Epoch) pour(into *Epoch) {
	n := e.written.Load()
	into.written.Add(n - e.safe)
	if e.left > e.safe {
		into.left = into.written.Load()
	}
	e.safe = n
}

// Tells reports whether the target tells epochs.
func (e *Epoch) Tells() bool { return e.id != [16]byte{} }

// Wrote enters a command of f, who may be nil, that has been acknowledged and that wrote into
// the cache.
func (e *Epoch) Wrote(f *Flusher) {
	e.written.Add(1)
	if f != nil {
		f.written.Add(1)
	}
}

// Lost enters that the cache has lost what was in it, and reports whether that was
// anything.
func (e *Epoch) Lost() bool {
	c := e.account
	c.mu.Lock()
	defer c.mu.Unlock()
	return e.drop()
}

func (e *Epoch) drop() bool {
	n := e.written.Load()
	if n == e.safe {
		return false
	}
	if e.left > e.safe {
		e.account.miss(e.account.losses)
	}
	e.safe = n
	e.account.losses++
	return true
}

// Flush is a flush that is under way.
type Flush struct {
	epoch  *Epoch
	user   *Flusher
	told   uint32 // the losses that its user knew of when it began
	covers uint64 // epoch.written, when it began
	own    uint64 // user.written, when it began
}

// Begin enters a flush of f, who may be nil.
func (e *Epoch) Begin(f *Flusher) Flush {
	b := Flush{epoch: e, user: f, covers: e.written.Load()}
	if f != nil {
		b.own = f.written.Load()
	}
	b.told = b.knows().Load()
	return b
}

// knows is where it is kept what the user who flushes knows.
func (b *Flush) knows() *atomic.Uint32 {
	if b.user != nil {
		return &b.user.told
	}
	return &b.epoch.account.told
}

// End takes a flush that has succeeded at the target, of the whole medium or of a part:
// it says whether that is true. Flushes that were under way together all fail, for each
// has its own caller.
func (b *Flush) End(whole bool) error {
	c := b.epoch.account
	c.mu.Lock()
	defer c.mu.Unlock()
	if b.told != c.losses {
		b.knows().Store(c.losses)
		c.told.Store(c.losses)
		if f := b.user; f != nil {
			f.safe = max(f.safe, b.own)
			if f.heir == c.missed.times {
				c.missed.any = false
			}
		}
		return ErrCacheLost
	}
	if whole {
		b.epoch.safe = max(b.epoch.safe, b.covers)
		if f := b.user; f != nil && !c.elsewhere(b.epoch) {
			f.safe = max(f.safe, b.own)
		}
	}
	return nil
}

// Cover enters what a flush that nobody asked for has made durable, after a write
// which has to be durable by itself.
func (b *Flush) Cover() {
	c := b.epoch.account
	c.mu.Lock()
	b.epoch.safe = max(b.epoch.safe, b.covers)
	c.mu.Unlock()
}

// Elsewhere reports whether another epoch than e holds something that no flush has made
// durable.
func (c *Cache) Elsewhere(e *Epoch) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.elsewhere(e)
}

func (c *Cache) elsewhere(e *Epoch) bool {
	return slices.ContainsFunc(c.epochs, func(o *Epoch) bool { return o != e && o.written.Load() != o.safe })
}

// Clean reports whether a flush would have nothing to make durable, and nobody a loss to be told of.
func (c *Cache) Clean() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.clean()
}

func (c *Cache) clean() bool {
	return !c.missed.any && c.told.Load() == c.losses && !c.elsewhere(nil)
}

// Spares reports whether that is so of a flush of f, who may be nil.
func (c *Cache) Spares(f *Flusher) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.clean() && (f == nil || f.told.Load() == c.losses)
}

// Strand enters as lost what epochs other than those given hold: no path leads to their
// caches any more, and a flush that is to succeed would not cover it.
func (c *Cache) Strand(reached ...*Epoch) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.epochs {
		if !slices.Contains(reached, e) {
			e.drop()
		}
	}
	c.epochs = slices.DeleteFunc(c.epochs, func(e *Epoch) bool { return e.paths == 0 && e.written.Load() == e.safe })
}
