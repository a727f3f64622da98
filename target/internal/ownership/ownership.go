// Package ownership has a folder that the nodes of a cluster share, in which one node at a
// time owns a group of volumes and keeps their state.
//
//	GROUP.lock    flock(2), held by the owner as long as it is the owner
//	GROUP.owner   who that is, and the number of owners so far: the generation
//	lu-….json     the records of volumes, and their undo journals; see volume.Store
//
// An owner asks before each change whether GROUP.owner still names it, so that
// a node that was taken for dead, and wakes, changes nothing any more. Between the question
// and the change is a moment that only the lock guards, which takes a file system whose
// flock holds between nodes (GFS2, OCFS2, NFS). And the data of volumes are not asked
// about at all: to keep an old owner from them is what fencing is for.
package ownership

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"softiser/internal/durable"
	"softiser/target/internal/statefile"
)

// Record says who owns a group.
type Record struct {
	Generation uint64    `json:"generation"` // counts owners, from 1 on
	Node       string    `json:"node"`
	Since      time.Time `json:"since"`
	Ended      bool      `json:"ended,omitempty"` // given up in an orderly way
}

// Errors of stores.
var (
	// ErrNotOwner: this node does not own the group, and may not change its records.
	ErrNotOwner = errors.New("this node does not own the group")
	// ErrLost: another node has taken the group over.
	ErrLost = errors.New("another node has taken the group over")
	// ErrHeld: another node has the lock of the group.
	ErrHeld = errors.New("the lock is held")
)

// lockPause is the time between two attempts to get the lock.
const lockPause = 20 * time.Millisecond

// Store is the folder of one group, as one node sees it. It implements volume.Store.
type Store struct {
	dir, group, node string

	mu   sync.Mutex // guards what follows; held across work on the files, Claim's wait included
	lock *os.File   // held; nil: this node is not the owner
	mine Record     // if lock
}

// New makes the store of a group for a node. Nothing is touched yet: on a node that stands
// by the folder may not be there.
func New(dir, group, node string) *Store { return &Store{dir: dir, group: group, node: node} }

func (s *Store) path(suffix string) string { return filepath.Join(s.dir, s.group+suffix) }

// Claim makes this node the owner. It waits for the lock of another one until ctx ends.
func (s *Store) Claim(ctx context.Context) (Record, error) {
	return s.claim(func(f *os.File) error { return s.waitLock(ctx, f) })
}

// TryClaim is Claim without waiting: it fails with ErrHeld.
func (s *Store) TryClaim() (Record, error) {
	return s.claim(func(f *os.File) error {
		free, err := tryLock(f)
		if err == nil && !free {
			err = s.held(f, ErrHeld)
		}
		return err
	})
}

// claim makes this node the owner once lock has the lock.
func (s *Store) claim(lock func(*os.File) error) (Record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lock != nil {
		return s.mine, s.checkLocked()
	}
	if _, err := os.Stat(s.dir); err != nil {
		return Record{}, fmt.Errorf("the shared store is not there; is it mounted on this node? %w", err)
	}
	f, err := os.OpenFile(s.path(".lock"), os.O_RDWR|os.O_CREATE|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return Record{}, err
	}
	if err := lock(f); err != nil {
		f.Close()
		return Record{}, err
	}
	old, err := s.Owner()
	if err == nil {
		s.mine = Record{Generation: old.Generation + 1, Node: s.node, Since: time.Now().UTC()}
		err = s.writeOwner(s.mine)
	}
	if err != nil {
		f.Close()
		return Record{}, err
	}
	s.lock = f
	return s.mine, nil
}

// tryLock gets the lock that f is, if it is free.
func tryLock(f *os.File) (free bool, err error) {
	for {
		switch err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.EWOULDBLOCK):
			return false, nil
		default:
			return err == nil, err
		}
	}
}

// waitLock gets the lock that f is.
func (s *Store) waitLock(ctx context.Context, f *os.File) error {
	for {
		if free, err := tryLock(f); free || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return s.held(f, ctx.Err())
		case <-time.After(lockPause):
		}
	}
}

// heldError says who has the lock.
type heldError struct {
	text string
	why  error // it is not waited for any longer
}

func (e *heldError) Error() string { return e.text }
func (e *heldError) Unwrap() error { return e.why }

// held is the error of a caller that no longer waits for the lock of f.
func (s *Store) held(f *os.File, why error) error {
	who, _ := s.Owner()
	if who == (Record{}) {
		return &heldError{fmt.Sprintf("the lock of group %s (%s) is held, and nothing says by which node; demote the group where it is active, or have that node fenced", s.group, f.Name()), why}
	}
	return &heldError{fmt.Sprintf("node %q holds the lock of group %s (generation %d, since %s); demote it there, or have it fenced",
		who.Node, s.group, who.Generation, who.Since.Format(time.RFC3339)), why}
}

func (s *Store) writeOwner(r Record) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return statefile.Replace(s.path(".owner"), append(b, '\n'))
}

// Owner returns who owns the group, or owned it last; the zero Record: nobody has.
func (s *Store) Owner() (r Record, err error) {
	b, err := os.ReadFile(s.path(".owner"))
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	if err != nil {
		return r, fmt.Errorf("who owns group %s is not known: %s: %w", s.group, s.path(".owner"), err)
	}
	return r, nil
}

// Check tells why this node is not the owner; nil: it is. It implements volume.Store.
func (s *Store) Check() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.checkLocked()
}

func (s *Store) checkLocked() error {
	if s.lock == nil {
		return ErrNotOwner
	}
	now, err := s.Owner()
	if err != nil {
		return err
	}
	if now == (Record{}) { // nobody who takes a group over leaves none
		return fmt.Errorf("who owns group %s is not known: %s is gone; is the store still mounted? Demote and promote the group to have the file again", s.group, s.path(".owner"))
	}
	if now.Generation != s.mine.Generation || now.Node != s.mine.Node {
		return fmt.Errorf("%w: node %q is owner %d, this one was owner %d", ErrLost, now.Node, now.Generation, s.mine.Generation)
	}
	return nil
}

// Held reports whether this node has claimed the group and not yielded it, whoever owns it
// by now.
func (s *Store) Held() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lock != nil
}

// Yield ends the ownership. What another node has taken over is left alone.
func (s *Store) Yield() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lock == nil {
		return nil
	}
	err := s.checkLocked()
	if err == nil {
		s.mine.Ended = true
		err = s.writeOwner(s.mine)
	}
	err = errors.Join(err, s.lock.Close()) // which ends the lock
	s.lock, s.mine = nil, Record{}
	return err
}

// owned runs f while this node is the owner.
func (s *Store) owned(f func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.checkLocked(); err != nil {
		return err
	}
	return f()
}

// Load implements volume.Store.
func (s *Store) Load(name string) (b []byte, err error) {
	err = s.owned(func() error {
		statefile.RemoveUnfinished(filepath.Join(s.dir, name))
		b, err = os.ReadFile(filepath.Join(s.dir, name))
		return err
	})
	return b, err
}

// errNobody: a folder without an owner is more likely to be one that is mounted elsewhere
// than one in which nothing was ever saved.
var errNobody = errors.New("nobody has owned the group yet, or the store is not mounted here")

// Peek implements volume.Store: whoever owns the group has saved what it has answered.
func (s *Store) Peek(name string) ([]byte, error) {
	switch r, err := s.Owner(); {
	case err != nil:
		return nil, err
	case r == Record{}:
		return nil, errNobody
	}
	return os.ReadFile(filepath.Join(s.dir, name))
}

// Save implements volume.Store.
func (s *Store) Save(name string, b []byte) error {
	return s.owned(func() error { return statefile.Replace(filepath.Join(s.dir, name), b) })
}

// Remove implements volume.Store.
func (s *Store) Remove(name string) error {
	return s.owned(func() error {
		if err := os.Remove(filepath.Join(s.dir, name)); err != nil {
			return err
		}
		return durable.SyncDir(s.dir)
	})
}

// Dir implements volume.Store.
func (s *Store) Dir() string { return s.dir }

// Shared implements volume.Store.
func (s *Store) Shared() bool { return true }
