package volume

import (
	"bytes"
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"softiser/internal/durable"
)

// pr is a volume with four clients, of whom the first ones are registered, with their number
// as the key.
type pr struct {
	*bench
	c [5]*Client // c[0] is nil
}

func newPR(t *testing.T, cfg Config, registered int) *pr {
	t.Helper()
	if cfg.Device == nil {
		cfg.Device = newDevice(t, "v")
	}
	p := &pr{bench: serve(t, new(Registry), cfg, "v")}
	for i := range p.c[1:] {
		p.c[i+1] = &Client{ID: Registrant{Initiator: string(rune('a' + i)), Target: "t", Port: 1}}
		if i < registered {
			p.ok(p.v.Register(p.c[i+1], &Register{NewKey: uint64(i + 1)}))
		}
	}
	p.face.events = nil
	return p
}

func (p *pr) ok(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Error(err)
	}
}

func (p *pr) refused(err, want error) {
	p.t.Helper()
	if !errors.Is(err, want) {
		p.t.Errorf("%v, want %v", err, want)
	}
}

// is checks type, generation and who holds it of those who are registered, by their number.
func (p *pr) is(typ ReservationType, generation uint32, registered, holders []int) {
	p.t.Helper()
	r := p.v.Reservations()
	var regs, holds []int
	for i, c := range p.c[1:] {
		if _, ok := r.Find(c.ID); ok {
			regs = append(regs, i+1)
		}
		if r.Holds(c.ID) {
			holds = append(holds, i+1)
		}
	}
	if r.Type != typ || r.Generation != generation || !slices.Equal(regs, registered) || !slices.Equal(holds, holders) || r.Len() != len(regs) {
		p.t.Errorf("%v, generation %d, %v registered, held by %v; want %v, %d, %v, %v", r.Type, r.Generation, regs, holds, typ, generation, registered, holders)
	}
}

// told checks which events there were since it was last asked.
func (p *pr) told(want ...EventKind) {
	p.t.Helper()
	p.face.mu.Lock()
	defer p.face.mu.Unlock()
	if !slices.Equal(p.face.events, want) {
		p.t.Errorf("told %v, want %v", p.face.events, want)
	}
	p.face.events = nil
}

// TestUnregister: who leaves takes the reservation along if he was its holder, and the last
// one if all were; nobody else does, and only who had access by it is told.
func TestUnregister(t *testing.T) {
	for _, typ := range []ReservationType{WriteExclusive, ExclusiveAccess, WriteExclusiveRegistrants, ExclusiveAccessRegistrants, WriteExclusiveAll, ExclusiveAccessAll} {
		p := newPR(t, Config{}, 3)
		p.ok(p.v.Reserve(p.c[1], 1, typ))
		p.is(typ, 3, []int{1, 2, 3}, map[bool][]int{true: {1, 2, 3}, false: {1}}[typ.AllRegistrants()])
		leave := func(i int) { p.ok(p.v.Register(p.c[i], &Register{Key: uint64(i)})) }
		leave(2)
		p.told()
		if typ.AllRegistrants() {
			p.is(typ, 4, []int{1, 3}, []int{1, 3})
			leave(1)
			p.is(typ, 5, []int{3}, []int{3})
			leave(3)
			p.told()
		} else {
			p.is(typ, 4, []int{1, 3}, []int{1})
			leave(1)
			p.is(NoReservation, 5, []int{3}, nil)
			if typ.RegistrantsOnly() {
				p.told(ReservationReleased)
			} else {
				p.told()
			}
			leave(3)
		}
		p.is(NoReservation, 6, nil, nil)
		p.close()
	}
}

// A registration that says nothing of power loss leaves what others have said, those that come
// at the same time included.
func TestRegistrationKeepsPersistence(t *testing.T) {
	p := newPR(t, Config{StateDir: t.TempDir()}, 0)
	persists := func(want bool) {
		t.Helper()
		if got := p.v.Reservations().Persist; got != want {
			t.Errorf("persists: %v, want %v", got, want)
		}
	}
	p.ok(p.v.Register(p.c[1], &Register{NewKey: 1, Keep: true}))
	persists(false)
	p.ok(p.v.Register(p.c[2], &Register{NewKey: 2, Persist: true}))
	p.ok(p.v.Register(p.c[3], &Register{NewKey: 3, Keep: true}))
	persists(true)
	p.ok(p.v.Register(p.c[3], &Register{Key: 3, Keep: true}))
	persists(true)
	p.ok(p.v.Register(p.c[1], &Register{Key: 1, NewKey: 4}))
	persists(false)
}

// TestUnreserve: only the holder ends the reservation, and only where others had access by
// it they are told.
func TestUnreserve(t *testing.T) {
	for typ, tells := range map[ReservationType]bool{WriteExclusive: false, ExclusiveAccess: false, WriteExclusiveRegistrants: true,
		ExclusiveAccessRegistrants: true, WriteExclusiveAll: true, ExclusiveAccessAll: true} {
		p := newPR(t, Config{}, 2)
		p.ok(p.v.Reserve(p.c[1], 1, typ))
		p.refused(p.v.Unreserve(p.c[1], 2, typ), ErrConflict)
		p.refused(p.v.Unreserve(p.c[1], 1, typ^2), ErrOtherType)
		if !typ.AllRegistrants() {
			p.ok(p.v.Unreserve(p.c[2], 2, typ))
			p.is(typ, 2, []int{1, 2}, []int{1})
		}
		p.told()
		p.ok(p.v.Unreserve(p.c[1], 1, typ))
		p.is(NoReservation, 2, []int{1, 2}, nil)
		if tells {
			p.told(ReservationReleased)
		} else {
			p.told()
		}
		p.close()
	}
}

// TestPreempt goes through whom a preemption removes, whether it takes the reservation and
// who is told (SPC-4 §5.12.11.4): only the key of its holder takes it, or 0 where all
// registrants hold it.
func TestPreempt(t *testing.T) {
	const we, ea, wr, wa = WriteExclusive, ExclusiveAccess, WriteExclusiveRegistrants, WriteExclusiveAll
	gone, released := RegistrationPreempted, ReservationReleased
	for _, c := range []struct {
		name       string
		typ        ReservationType // reserved by 1
		by         int
		victim     uint64
		to         ReservationType
		err        error
		registered []int
		now        ReservationType
		holders    []int
		told       []EventKind
	}{
		{"nothing reserved", 0, 2, 3, we, nil, []int{1, 2}, 0, nil, []EventKind{gone}},
		{"nothing reserved, and the type does not count", 0, 2, 3, 2, nil, []int{1, 2}, 0, nil, []EventKind{gone}},
		{"nothing reserved, nobody named", 0, 2, 0, we, ErrNoVictim, []int{1, 2, 3}, 0, nil, nil},
		{"nobody has the key", 0, 2, 9, we, ErrConflict, []int{1, 2, 3}, 0, nil, nil},
		{"the holder", we, 2, 1, ea, nil, []int{2, 3}, ea, []int{2}, []EventKind{released, gone}},
		{"the holder, with his type", we, 2, 1, we, nil, []int{2, 3}, we, []int{2}, []EventKind{gone}},
		{"the holder, with a wrong type", we, 2, 1, 2, ErrType, []int{1, 2, 3}, we, []int{1}, nil},
		{"another one", we, 2, 3, ea, nil, []int{1, 2}, we, []int{1}, []EventKind{gone}},
		{"another one, and the type does not count", we, 2, 3, 2, nil, []int{1, 2}, we, []int{1}, []EventKind{gone}},
		{"nobody named", we, 2, 0, ea, ErrNoVictim, []int{1, 2, 3}, we, []int{1}, nil},
		{"by the holder himself", we, 1, 1, ea, nil, []int{1, 2, 3}, ea, []int{1}, []EventKind{released, gone}},
		{"who had access loses it", wr, 2, 1, we, nil, []int{2, 3}, we, []int{2}, []EventKind{released, gone}},
		{"who had access keeps it", wr, 2, 1, wr, nil, []int{2, 3}, wr, []int{2}, []EventKind{gone}},
		{"another one had none", ea, 2, 1, we, nil, []int{2, 3}, we, []int{2}, []EventKind{released, gone}},
		{"all", wa, 2, 0, we, nil, []int{2}, we, []int{2}, []EventKind{released, gone}},
		{"all, with a wrong type", wa, 2, 0, 0, ErrType, []int{1, 2, 3}, wa, []int{1, 2, 3}, nil},
		{"one of all", wa, 2, 1, we, nil, []int{2, 3}, wa, []int{2, 3}, []EventKind{gone}},
		{"nobody of all", wa, 2, 9, we, ErrConflict, []int{1, 2, 3}, wa, []int{1, 2, 3}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPR(t, Config{}, 3)
			if c.typ != NoReservation {
				p.ok(p.v.Reserve(p.c[1], 1, c.typ))
			}
			p.refused(p.v.Preempt(p.c[c.by], &Preempt{Key: 7, Victim: c.victim, Type: c.to}), ErrConflict)
			p.refused(p.v.Preempt(p.c[4], &Preempt{Victim: c.victim, Type: c.to}), ErrConflict)
			if err := p.v.Preempt(p.c[c.by], &Preempt{Key: uint64(c.by), Victim: c.victim, Type: c.to}); !errors.Is(err, c.err) {
				t.Errorf("%v, want %v", err, c.err)
			}
			generation := uint32(4)
			if c.err != nil {
				generation = 3
			}
			p.is(c.now, generation, c.registered, c.holders)
			p.told(c.told...)
		})
	}
}

// TestPreemptAborts: a preempt and abort ends the commands of those whose registration goes,
// those of who preempts himself too if his own key is named, but never the command that
// asks for it; it is answered when they have ended, or at once.
func TestPreemptAborts(t *testing.T) {
	for _, c := range []struct {
		name   string
		victim uint64
		ends   []int
	}{
		{"the holder", 1, []int{1}},
		{"another one", 3, []int{3}},
		{"his own key, and he holds nothing", 2, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPR(t, Config{}, 3)
			p.ok(p.v.Reserve(p.c[1], 1, WriteExclusive))
			p.aborts(2, c.victim, c.ends)
		})
	}
	t.Run("his own key", func(t *testing.T) {
		p := newPR(t, Config{}, 2)
		p.ok(p.v.Register(p.c[3], &Register{NewKey: 1}))
		p.ok(p.v.Reserve(p.c[1], 1, WriteExclusive))
		p.aborts(1, 1, []int{1, 3})
	})
}

// aborts has client number by preempt victim and abort; of the others, and of a second
// command of his own, those of ends do.
func (p *pr) aborts(by int, victim uint64, ends []int) {
	p.t.Helper()
	var reqs [5]*req
	for i := 1; i <= 4; i++ {
		reqs[i], _ = p.start(nil, p.c[i], Simple, uint64(8*i), uint64(8*i+8), HoldWrite)
	}
	self, _ := p.start(nil, p.c[by], Simple, 100, 101, HoldWrite)
	over := false
	p.ok(p.v.Preempt(p.c[by], &Preempt{Key: uint64(by), Victim: victim, Type: ExclusiveAccess, Ended: func() { over = true }, Except: &self.op}))
	if over != (len(ends) == 0) {
		p.t.Errorf("answered at once: %v", over)
	}
	if self.op.Aborted() {
		p.t.Error("it has aborted itself")
	}
	for i := 1; i <= 4; i++ {
		want := slices.Contains(ends, i)
		if reqs[i].op.Aborted() != want {
			p.t.Errorf("the command of %d is aborted: %v, want %v", i, !want, want)
		}
		why := AbortReason(reqs[i].op.aborted.Load())
		if want && (why == AbortedByOwner) != (i == by) {
			p.t.Errorf("the command of %d: reason %d", i, why)
		}
		reqs[i].end()
	}
	self.end()
	if !over {
		p.t.Error("not answered when all have ended")
	}
}

// TestRegisterOthers: who registers others too does so for nobody that is registered, and
// proves nothing for them; through all ports means one each.
func TestRegisterOthers(t *testing.T) {
	p := newPR(t, Config{}, 1)
	broken := errors.New("broken")
	p.refused(p.v.Register(p.c[2], &Register{NewKey: 2, Others: func() ([]Registrant, error) { return nil, broken }}), broken)
	p.refused(p.v.Register(p.c[2], &Register{Others: func() ([]Registrant, error) { return nil, broken }}), broken)
	p.refused(p.v.Register(p.c[1], &Register{Key: 1, NewKey: 2, Others: func() ([]Registrant, error) { return nil, nil }}), ErrRegistered)
	p.refused(p.v.Register(p.c[2], &Register{Ignore: true, NewKey: 2, Others: func() ([]Registrant, error) { return nil, nil }}), ErrRegistered)
	p.is(NoReservation, 1, []int{1}, nil)
	p.c[2].User = "bob"
	p.ok(p.v.Register(p.c[2], &Register{NewKey: 2, Others: func() ([]Registrant, error) { return []Registrant{p.c[3].ID}, nil }}))
	p.is(NoReservation, 2, []int{1, 2, 3}, nil)
	for i, want := range map[int]Registration{2: {Key: 2, User: "bob"}, 3: {Key: 2}} {
		if got, _ := p.v.Reservations().Find(p.c[i].ID); got != want {
			t.Errorf("%d: %+v, want %+v", i, got, want)
		}
	}
	ports := func(k Registrant) []Registrant {
		other := k
		other.Port = 2
		return []Registrant{k, other}
	}
	for range 2 { // the second time all of them are there
		p.ok(p.v.Register(p.c[4], &Register{Ignore: true, NewKey: 4, Ports: ports}))
	}
	var order []string
	for _, k := range p.v.Reservations().Registrants() {
		reg, _ := p.v.Reservations().Find(k)
		if reg.AllPorts != (k.Initiator == "d") {
			t.Errorf("%+v: %+v", k, reg)
		}
		order = append(order, k.Initiator+string(rune('0'+k.Port)))
	}
	if got := strings.Join(order, " "); got != "a1 b1 c1 d1 d2" {
		t.Error(got)
	}
}

// TestRegistrantsOrder: by initiator, then target, then port.
func TestRegistrantsOrder(t *testing.T) {
	want := []Registrant{{"a", "s", 3}, {"a", "t", 1}, {"a", "t", 2}, {"b", "r", 1}, {"b", "s", 1}}
	for range 10 { // a map has none
		r := (&Reservations{}).clone()
		for _, k := range want {
			r.regs[k] = Registration{}
		}
		if got := r.Registrants(); !slices.Equal(got, want) {
			t.Fatalf("%v", got)
		}
	}
}

// TestMove: who holds the reservation hands it over, stays registered if he wants to, and
// says whether it outlives a loss of power.
func TestMove(t *testing.T) {
	for _, unregister := range []bool{false, true} {
		p := newPR(t, Config{StateDir: t.TempDir()}, 2)
		move := func(i int, m Move) error {
			return p.v.MoveReservation(p.c[i], uint64(i), func() (Move, error) { return m, nil })
		}
		m := Move{NewKey: 9, To: p.c[3].ID, Persist: true, Unregister: unregister}
		p.refused(move(1, m), ErrConflict) // nothing is reserved
		p.ok(p.v.Reserve(p.c[1], 1, WriteExclusive))
		p.refused(move(2, m), ErrConflict)
		p.ok(move(1, m))
		left := []int{1, 2, 3}
		if unregister {
			left = left[1:]
		}
		p.is(WriteExclusive, 3, left, []int{3})
		p.told()
		if r, _ := p.v.Reservations().Find(p.c[3].ID); r.Key != 9 || !p.v.Reservations().Persist {
			t.Errorf("%+v, %v", r, p.v.Reservations().Persist)
		}
		_, err := os.Stat(p.v.state.file(".json"))
		p.ok(err)
		p.close()
	}
}

// TestReserve: who holds a reservation has it, and cannot change its type by reserving again; nor can it be
// handed over where all registrants hold it (SPC-4 §5.12.7, §5.12.8).
func TestReserve(t *testing.T) {
	types := []ReservationType{WriteExclusive, ExclusiveAccess, WriteExclusiveRegistrants, ExclusiveAccessRegistrants, WriteExclusiveAll, ExclusiveAccessAll}
	for _, typ := range types {
		p := newPR(t, Config{}, 2)
		p.ok(p.v.Reserve(p.c[1], 1, typ))
		holders := []int{1}
		if typ.AllRegistrants() {
			holders = []int{1, 2}
		}
		for _, again := range types {
			if again == typ {
				p.ok(p.v.Reserve(p.c[1], 1, again))
			} else {
				p.refused(p.v.Reserve(p.c[1], 1, again), ErrConflict)
			}
			if again == typ && typ.AllRegistrants() {
				p.ok(p.v.Reserve(p.c[2], 2, again))
			} else {
				p.refused(p.v.Reserve(p.c[2], 2, again), ErrConflict)
			}
		}
		p.is(typ, 2, []int{1, 2}, holders)
		if typ.AllRegistrants() {
			p.refused(p.v.MoveReservation(p.c[1], 1, func() (Move, error) { return Move{NewKey: 9, To: p.c[3].ID}, nil }), ErrConflict)
			p.is(typ, 2, []int{1, 2}, holders)
		}
		p.told()
		p.close()
	}
}

// TestSeize: who seizes the volume keeps all others off, but not from what never conflicts.
func TestSeize(t *testing.T) {
	p := newPR(t, Config{}, 0)
	a, b := p.c[1], p.c[2]
	check := func(c *Client, want bool) {
		t.Helper()
		for access, want := range map[Access]bool{Always: false, Reads: want, Writes: want} {
			if got := p.v.Forbids(c, access); got != want {
				t.Errorf("access %d forbidden: %v", access, got)
			}
		}
	}
	if p.v.Reserved() || !p.v.Seize(a) || !p.v.Seize(a) || p.v.Seize(b) || !p.v.Reserved() || p.v.Seizer() != a {
		t.Error("not seized")
	}
	check(a, false)
	check(b, true)
	if p.v.Unseize(b); p.v.Seizer() != a {
		t.Error("another one has ended it")
	}
	if p.v.Unseize(nil); p.v.Reserved() || p.v.Seizer() != nil {
		t.Error("it has not ended")
	}
	if !p.v.Seize(b) {
		t.Error("not free")
	}
	if p.v.Unseize(b); p.v.Reserved() {
		t.Error("it has not ended")
	}
	check(a, false)
}

// TestNoReservationHolds: without a reservation nobody holds one, not even who has no name.
func TestNoReservationHolds(t *testing.T) {
	r := (&Reservations{}).clone()
	r.regs[Registrant{}] = Registration{Key: 1}
	if r.Holds(Registrant{}) || r.remove(Registrant{}) {
		t.Error("held")
	}
	for typ, want := range map[ReservationType]string{WriteExclusiveAll: "write exclusive, all registrants", 2: "reservation type 2"} {
		if typ.String() != want || typ.Valid() != (typ == WriteExclusiveAll) {
			t.Errorf("%v, valid %v", typ, typ.Valid())
		}
	}
	if ReservationType(4).Valid() || ReservationType(9).Valid() || NoReservation.Valid() {
		t.Error("no such type")
	}
}

// TestRestoreReservations: what a state file tells of reservations, and what a later one
// does.
func TestRestoreReservations(t *testing.T) {
	a := Registrant{"a", "t", 1}
	regs := []savedReg{{a, Registration{Key: 1}}}
	for _, c := range []struct {
		name    string
		kept    savedState
		typ     ReservationType
		holds   bool
		persist bool
	}{
		{"nothing", savedState{}, 0, false, false},
		{"registrations", savedState{Regs: regs}, 0, false, true},
		{"held", savedState{Regs: regs, PR: &savedPR{WriteExclusive, &a}}, WriteExclusive, true, true},
		{"held by all", savedState{Regs: regs, PR: &savedPR{WriteExclusiveAll, nil}}, WriteExclusiveAll, true, true},
		{"of no type", savedState{Regs: regs, PR: &savedPR{2, &a}}, 0, false, true},
		{"nobody is registered", savedState{PR: &savedPR{WriteExclusiveAll, nil}}, 0, false, false},
		{"held by nobody", savedState{Regs: regs, PR: &savedPR{WriteExclusive, nil}}, WriteExclusive, false, true},
	} {
		r := restoreReservations(&c.kept)
		if r.Type != c.typ || r.Holds(a) != c.holds || r.Persist != c.persist || r.Generation != 0 || r.Len() != len(c.kept.Regs) {
			t.Errorf("%s: %+v", c.name, r)
		}
		var next savedState
		r.tell(&next, false)
		if (next.PR != nil) != (c.typ != 0) || next.PR != nil && (next.PR.Holder != nil) == c.typ.AllRegistrants() {
			t.Errorf("%s: told %+v", c.name, next.PR)
		}
	}
}

// TestNotKept: without a folder for its state a volume writes no file.
func TestNotKept(t *testing.T) {
	t.Chdir(t.TempDir())
	p := newPR(t, Config{}, 2)
	p.refused(p.v.Register(p.c[3], &Register{NewKey: 3, Persist: true}), ErrNotKept)
	end, err := p.v.Rewriter.Begin(Rewrite{Kind: Erase, Passes: 1})
	p.ok(err)
	p.wait(end)
	p.ok(end.Err())
	p.close()
	if files, err := os.ReadDir("."); err != nil || len(files) != 0 {
		t.Errorf("%v, %v", files, err)
	}
}

// TestUncertainState: after a save of which nobody knows whether it is on disk, the next
// change is saved even if it need not be kept, however often that fails.
func TestUncertainState(t *testing.T) {
	file, dir := durable.SyncFile, durable.SyncDir
	t.Cleanup(func() { durable.SyncFile, durable.SyncDir = file, dir })
	p := newPR(t, Config{StateDir: t.TempDir()}, 0)
	durable.SyncDir = func(string) error { return errStep }
	p.refused(p.v.Register(p.c[1], &Register{NewKey: 1, Persist: true}), errStep)
	durable.SyncDir, durable.SyncFile = dir, func(*os.File) error { return errStep }
	p.refused(p.v.Register(p.c[1], &Register{NewKey: 1}), errStep)
	durable.SyncFile = file
	p.ok(p.v.Register(p.c[1], &Register{NewKey: 1}))
	b, err := os.ReadFile(p.v.state.file(".json"))
	if err != nil || bytes.Contains(b, []byte("registrations")) {
		t.Errorf("%s, %v", b, err)
	}
	p.ok(os.Remove(p.v.state.file(".json")))
	p.ok(p.v.Register(p.c[2], &Register{NewKey: 2}))
	if _, err := os.Stat(p.v.state.file(".json")); err == nil {
		t.Error("saved once more")
	}
	if p.v.SaveParameters([]byte("{")) == nil {
		t.Error("what is no JSON was saved")
	}
}

// TestUncertainStateGoesOver: so is the next change in the process that goes on with the volume.
func TestUncertainStateGoesOver(t *testing.T) {
	dir := durable.SyncDir
	t.Cleanup(func() { durable.SyncDir = dir })
	for _, uncertain := range []bool{false, true} {
		cfg, c := Config{Device: newDevice(t, "v"), StateDir: t.TempDir()}, &Client{ID: Registrant{"i", "t", 1}}
		b := serve(t, new(Registry), cfg, "v")
		if uncertain {
			durable.SyncDir = func(string) error { return errStep }
			if err := b.v.Register(c, &Register{NewKey: 1, Persist: true}); !errors.Is(err, errStep) {
				t.Fatal(err)
			}
			durable.SyncDir = dir
		}
		carried, err := Carry(b.v)
		if err != nil {
			t.Fatal(err)
		}
		next := new(Registry)
		if err := next.Expect(cfg.Device.Info().ID, carried); err != nil {
			t.Fatal(err)
		}
		n := serve(t, next, cfg, "v")
		if err := n.v.Register(c, &Register{NewKey: 1}); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(n.v.state.file(".json")); (err == nil) != uncertain {
			t.Errorf("uncertain %v: %v", uncertain, err)
		}
	}
}

// TestBadState: a state file that is not understood, all of it, keeps its volume from being
// served.
func TestBadState(t *testing.T) {
	d, dir := newDevice(t, "v"), t.TempDir()
	cfg := Config{Device: d, StateDir: dir}
	b := serve(t, new(Registry), cfg, "v")
	name, unit := b.v.state.file(".json"), b.v.id.Key()
	b.close()
	for text, good := range map[string]bool{
		`{"version": 1, "unit": "` + unit + `"}`:                                                                          true,
		`{"version": 2, "unit": "` + unit + `"}`:                                                                          true,
		`{"version": 4, "unit": "` + unit + `"}`:                                                                          false,
		`{"version": 0, "unit": "` + unit + `"}`:                                                                          false,
		`{"version": 2, "unit": "` + unit + `", "uncorrectable": "512-1024 4096-8192"}`:                                   true,
		`{"version": 2, "unit": "` + unit + `", "uncorrectable": "512-1024 0-512"}`:                                       false,
		`{"version": 1, "unit": "x"}`:                                                                                     false,
		`{"version": 1, "unit": "` + unit + `", "registrations": [{"initiator_port": "a", "key": "1"}]}`:                  false,
		`{"version": 1, "unit": "` + unit + `", "operation": {"kind": "format", "passes": 1}}`:                            true,
		`{"version": 1, "unit": "` + unit + `", "sanitized": {"kind": "burn", "passes": 1}}`:                              false,
		`{"version": 1, "unit": "` + unit + `", "operation": {"kind": "format", "passes": 1, "pattern": "` + long + `"}}`: false,
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		p := new(Place)
		_, err := new(Registry).Map(cfg, p, PlaceConfig{Name: "v", Face: &testFace{left: make(chan struct{})}})
		if (err == nil) != good {
			t.Errorf("%.200s: %v", text, err)
		}
		if err == nil {
			p.Start()
			if err := p.Drain(context.Background()); err != nil {
				t.Error(err)
			}
		}
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(name, 0o700); err != nil { // cannot be read as a file
		t.Fatal(err)
	}
	if _, err := new(Registry).Map(cfg, new(Place), PlaceConfig{Name: "v", Face: &testFace{}}); err == nil {
		t.Error("served without its state")
	}
}

// long is a pattern, in base 64, that is longer than any block.
var long = strings.Repeat("AAAA", maxPattern/3+1)
