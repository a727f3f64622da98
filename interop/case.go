package main

import (
	"context"
	"time"

	"softiser/interop/internal/guest"
)

// Case is one line of the matrix.
type Case struct {
	Name   string     // group/what, for example iser/fio-verify
	Expect string     // what a correct peer pair does
	Short  bool       // part of the short form
	Fresh  bool       // needs a guest of its own (it is killed, or the module is loaded anew)
	Kind   guest.Kind // of its guests; "" is guest.Plain
	Limit  time.Duration
	Run    func(ctx context.Context, e *Env) (seen string, err error)
}

// kind is that of the guests of a case.
func (c Case) kind() guest.Kind {
	if c.Kind == "" {
		return guest.Plain
	}
	return c.Kind
}

// Result is what a case came to.
type Result struct {
	Case
	Seen    string
	Skipped bool // this host cannot run it; Seen says why
	Err     error
	Took    time.Duration
	Commit  string // what was tested
	Day     string // when, 2006-01-02
}

// skipped is the error of a case that this host cannot run.
type skipped struct{ why error }

func (s skipped) Error() string { return s.why.Error() }
func (s skipped) Unwrap() error { return s.why }

// matrix is every case, in the order of the table. The cases_*.go files fill it.
var matrix = concat(peerCases, verbsCases, scatterCases, perftestCases, terminateCases, iserCases, tcpCases, nvmeCases, nvmeHostCases, chapCases, scsiCases, recoveryCases, upgradeCases, initiatorCases, toolCases, ublkCases, captureCases, lvmCases, haCases, roceCases)

func concat(groups ...[]Case) []Case {
	var all []Case
	for _, g := range groups {
		all = append(all, g...)
	}
	return all
}
