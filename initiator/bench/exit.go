package bench

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
)

// exitWhat is which clones end when one of a job with exitall has ended.
type exitWhat uint8

const (
	exitGroup     exitWhat = iota // those of its reporting group
	exitStonewall                 // all that run; those behind the next stonewall begin
	exitAll                       // all, and those behind a stonewall never begin
)

func setExitWhat(j *Job, v string) error {
	switch strings.ToLower(v) {
	case "group":
		j.ExitWhat = exitGroup
	case "stonewall":
		j.ExitWhat = exitStonewall
	case "all":
		j.ExitWhat = exitAll
	default:
		return errors.New("expected group, stonewall or all")
	}
	return nil
}

// exits carries out exitall for clones that run together.
type exits struct {
	waiting sync.WaitGroup
	over    atomic.Bool // nothing is to run after them
}

// follow begins to wait for the clones whose end is the end of others, too.
func (e *exits) follow(clones []*clone) {
	for _, c := range clones {
		if !c.job.ExitAll {
			continue
		}
		e.waiting.Go(func() {
			<-c.done
			if c.dismissed.Load() {
				return // it was ended by another job's exitall, and ends nobody in turn
			}
			if c.job.ExitWhat == exitAll {
				e.over.Store(true)
			}
			for _, o := range clones {
				if o != c && (c.job.ExitWhat != exitGroup || o.job.group == c.job.group) {
					o.dismiss()
				}
			}
		})
	}
}

// wait returns when all clones have ended, with whether later ones may begin.
func (e *exits) wait() (over bool) {
	e.waiting.Wait()
	return e.over.Load()
}
