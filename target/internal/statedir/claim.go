package statedir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"softiser/internal/filelock"
)

// lockName is the file whose lock (flock(2)) says whose the folder is. It is empty and stays.
const lockName = "lock"

// Claim is a folder that is this process's until Release, or the end of the process.
type Claim struct{ file *os.File }

// Take makes the folder, if need be, and this process the one that uses it. Where the file of the lock can be
// neither made nor opened nothing can be kept, and where there are no locks nobody could tell: then the folder is
// used without a claim, which is nil.
func Take(dir string) (*Claim, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	name := filepath.Join(dir, lockName)
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		f, err = os.Open(name)
	}
	if err != nil {
		return nil, nil
	}
	if err := lock(f, syscall.LOCK_EX); err != nil {
		f.Close()
		return nil, inUse(dir, err)
	}
	return &Claim{f}, nil
}

// lock returns an error only if another open of the file has the lock.
func lock(f *os.File, how int) error {
	if !errors.Is(syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB), syscall.EWOULDBLOCK) {
		return nil
	}
	who, _ := filelock.Holder(f)
	return errors.New(who)
}

func inUse(dir string, by error) error {
	return fmt.Errorf("%s is in use by %w: what is kept there is of one target; name another folder, or stop that one", dir, by)
}

// InUse says who uses the folder, if that is another one than this process will be, and touches nothing.
func InUse(dir string) error {
	f, err := os.Open(filepath.Join(dir, lockName))
	if err != nil {
		return nil
	}
	defer f.Close()
	if err := lock(f, syscall.LOCK_SH); err != nil {
		return inUse(dir, err)
	}
	return nil
}

// Inherit is the claim of the process that has handed its descriptor over, which is the claim's from here on.
func Inherit(fd int) *Claim { return &Claim{os.NewFile(uintptr(fd), lockName)} }

// Dup returns a descriptor for a process that is to inherit the claim; -1: there is none. It is the caller's.
func (c *Claim) Dup() (int, error) {
	if c == nil {
		return -1, nil
	}
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	fd, err := syscall.Dup(int(c.file.Fd()))
	if err != nil {
		return -1, err
	}
	syscall.CloseOnExec(fd)
	return fd, nil
}

// Release leaves the folder to others.
func (c *Claim) Release() {
	if c == nil {
		return
	}
	_ = syscall.Flock(int(c.file.Fd()), syscall.LOCK_UN) // which closing does, but not beside a fork: its child has the descriptor until its exec
	c.file.Close()
}
