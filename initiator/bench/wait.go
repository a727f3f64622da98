package bench

import "fmt"

// checkWait finds the job that wait_for names among those before this one; as in
// fio there must be one, and only one.
func (j *Job) checkWait(before []*Job) error {
	if j.WaitFor == "" {
		return nil
	}
	found := 0
	for _, b := range before {
		if b.Name == j.WaitFor {
			found++
		}
	}
	if found != 1 {
		return fmt.Errorf("%s: job %s: wait_for=%s: %d jobs before this one have that name, not one", j.Pos, j.Name, j.WaitFor, found)
	}
	return nil
}

// waitsFor returns those of the stage whose end a clone waits for; a job of an
// earlier stage has ended.
func (c *clone) waitsFor(stage []*clone) (list []*clone) {
	for _, b := range stage {
		if c.job.WaitFor != "" && b.job.Name == c.job.WaitFor {
			list = append(list, b)
		}
	}
	return list
}

// after reports whether a clone begins only when b has ended, be it by way of
// others.
func (c *clone) after(b *clone, stage []*clone) bool {
	for _, w := range c.waitsFor(stage) {
		if w == b || w.after(b, stage) {
			return true
		}
	}
	return false
}
