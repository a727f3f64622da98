package bench

import (
	"fmt"
	"time"
)

// dir is a data direction; the order is fio's, and so are the indices.
type dir uint8

const (
	dirRead dir = iota
	dirWrite
	dirTrim
	dirSync
	dirs  = 4
	datas = 3 // directions that move or address data
)

func (d dir) String() string { return [dirs]string{"read", "write", "trim", "sync"}[d] }

// VerifyMode says what is checked in a block.
type VerifyMode uint8

const (
	VerifyNone VerifyMode = iota
	VerifyCRC32C
)

// MinMax is a range of block sizes in bytes.
type MinMax struct{ Min, Max int }

func (m MinMax) String() string { return fmt.Sprintf("%dB-%dB", m.Min, m.Max) }

// Job is one load after all options have been read. Zero values are fio's
// defaults, filled by [ParseJobs].
type Job struct {
	Name        string
	Description string
	Pos         string // where the job was defined
	URL         string // the volume; empty: the command's

	Dirs   [datas]bool // directions used
	Random bool
	RWName string // as written

	SeqAdd    int64 // sequential: bytes added to each offset
	SeqRun    int   // random: operations that begin with one drawn offset; 1: each is drawn
	identical bool  // random: those after the first repeat its offset
	Zones     Zones
	Align     [datas]int64 // boundary of random offsets; zero: the smallest block

	BS            [datas]MinMax
	Split         [datas][]portion // block sizes with their shares; nil: evenly from BS
	IODepth       int
	NumJobs       int
	Size          Size // length of the range; zero: to the end of the volume
	Offset        Size
	OffsetIncr    Size  // added per clone
	IOSize        Size  // bytes to move; zero: Size
	NumberIOs     int64 // operations to issue; zero: no limit
	Loops         int
	Runtime       time.Duration
	TimeBased     bool
	RampTime      time.Duration
	StartDelay    time.Duration
	ThinkTime     time.Duration
	MaxLatency    time.Duration // of one operation; zero: any
	LatencyTarget LatencyTarget
	Steady        Steady
	RWMixRead     int // percent
	Rate          [datas]int64
	RateIOPS      [datas]int64
	Floor         Floor
	Flow          int // weight among the jobs of one FlowID; zero: none
	FlowID        int
	FlowSleep     time.Duration
	Seed          uint64
	NoRandomMap   bool
	Dist          Distribution
	Poisson       bool // a limited rate is a Poisson process, not a steady one
	Payload       Payload
	Logs          Logs
	FUA           bool
	Fsync         int // flush after so many writes; zero: never
	EndFsync      bool

	Verify        VerifyMode
	DoVerify      bool
	VerifyOnly    bool
	VerifyFatal   bool
	VerifyDurable bool   // verify-only: require what was flushed, not what was acknowledged
	VerifyState   string // path of the ledger; empty: in memory

	Sessions       int // connections; zero: one per clone
	BusyPoll       time.Duration
	NewGroup       bool
	Stonewall      bool
	WaitFor        string // job whose clones must have ended first
	ExitAll        bool   // a clone's end ends others, too
	ExitWhat       exitWhat
	GroupReporting bool
	ClatPercentile bool
	SlatPercentile bool
	LatPercentile  bool
	Percentiles    []float64
	ContinueOnErr  bool

	kbBase   int
	clone    int // number of this clone within its job
	thread   int // number of this clone within the run, from 1
	threads  int // clones within the run
	group    int
	explicit map[string]string // options as written, for the report
	order    []string          // their order
}

// defaultPercentiles is fio's list.
var defaultPercentiles = []float64{1, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 99, 99.5, 99.9, 99.95, 99.99}

func newJob() *Job {
	j := &Job{
		Name: "bench", RWName: "read", IODepth: 1, NumJobs: 1, SeqRun: 1, Loops: 1, RWMixRead: 50, Floor: Floor{Cycle: time.Second}, LatencyTarget: LatencyTarget{Percent: 100}, Payload: Payload{chunk: 512, workingSet: 5}, DoVerify: true,
		ClatPercentile: true, Percentiles: defaultPercentiles, Seed: defaultSeed, kbBase: 1024,
		explicit: map[string]string{},
	}
	j.Dirs[dirRead] = true
	for d := range j.BS {
		j.BS[d] = MinMax{4096, 4096}
	}
	return j
}

// defaultSeed makes runs repeatable unless randrepeat=0 or seed says otherwise.
const defaultSeed = 0x89

// copy returns an independent copy, for a job that begins from the global
// section.
func (j *Job) copy() *Job {
	c := *j
	c.explicit = map[string]string{}
	c.order = nil
	return &c
}

// paced reports whether a rate limits the job.
func (j *Job) paced() bool { return j.Rate != [datas]int64{} || j.RateIOPS != [datas]int64{} }

func (j *Job) mixed() bool  { return j.Dirs[dirRead] && j.Dirs[dirWrite] }
func (j *Job) writes() bool { return j.Dirs[dirWrite] }

// uneven reports whether random blocks are drawn by a distribution that prefers
// some of them, and so without a random map.
func (j *Job) uneven() bool { return j.Random && j.Dist.kind != spreadEven }

// minBS is the smallest block of any direction used: the unit of the random
// map and of the ledger.
func (j *Job) minBS() int {
	m := 0
	for d, on := range j.Dirs {
		if on && (m == 0 || j.BS[d].Min < m) {
			m = j.BS[d].Min
		}
	}
	return m
}

// maxBS is the largest block of any direction used.
func (j *Job) maxBS() int {
	m := 0
	for d, on := range j.Dirs {
		if on {
			m = max(m, j.BS[d].Max)
		}
	}
	return m
}

// Limits on one job: beyond them an option is a mistake, not a load.
const (
	maxDepth   = 1 << 16
	maxNumJobs = 4096
	maxBlock   = 64 << 20
)

// check finds contradictions between options; each message says what to change.
func (j *Job) check() error {
	fail := func(format string, args ...any) error {
		return fmt.Errorf("%s: job %s: %s", j.Pos, j.Name, fmt.Sprintf(format, args...))
	}
	unit := j.minBS()
	for d, on := range j.Dirs {
		if bs := j.BS[d]; on && (bs.Min < 512 || bs.Max > maxBlock || bs.Min > bs.Max) {
			return fail("%s block size %v must lie between 512 and %d bytes", dir(d), bs, maxBlock)
		} else if on && (bs.Min%unit != 0 || bs.Max%unit != 0) {
			return fail("block sizes must be multiples of the smallest one, %d bytes", unit)
		}
		for _, s := range j.Split[d] {
			if on && s.value%unit != 0 {
				return fail("block sizes must be multiples of the smallest one, %d bytes", unit)
			}
		}
	}
	switch {
	case j.IODepth < 1 || j.IODepth > maxDepth:
		return fail("iodepth %d must lie between 1 and %d", j.IODepth, maxDepth)
	case j.NumJobs < 1 || j.NumJobs > maxNumJobs:
		return fail("numjobs %d must lie between 1 and %d", j.NumJobs, maxNumJobs)
	case j.Sessions < 0 || j.Sessions > maxNumJobs:
		return fail("sessions %d must lie between 0 and %d", j.Sessions, maxNumJobs)
	case j.RWMixRead < 0 || j.RWMixRead > 100:
		return fail("rwmixread %d must lie between 0 and 100", j.RWMixRead)
	case j.Loops < 1:
		return fail("loops %d must be at least 1", j.Loops)
	case j.LatencyTarget.Target > 0 && (j.Flow > 0 || j.paced() || j.ThinkTime > 0 || j.Verify != VerifyNone):
		return fail("latency_target together with flow, a rate, thinktime or verify is not offered: the depth would not be what decides")
	case j.Flow < 0:
		return fail("flow %d must not be negative", j.Flow)
	case j.WaitFor == j.Name:
		return fail("it cannot wait for itself")
	case j.Fsync < 0:
		return fail("fsync %d must not be negative", j.Fsync)
	}
	if err := j.checkPayload(fail); err != nil {
		return err
	}
	if err := j.checkSteady(fail); err != nil {
		return err
	}
	if err := j.settleZones(fail); err != nil {
		return err
	}
	if err := j.checkSequence(fail); err != nil {
		return err
	}
	return j.checkVerify(fail)
}

func (j *Job) checkVerify(fail func(string, ...any) error) error {
	switch {
	case j.Verify == VerifyNone && (j.VerifyOnly || j.VerifyState != ""):
		return fail("verify_only and verify_state need verify=crc32c")
	case j.Verify == VerifyNone:
		return nil
	case j.Dirs[dirTrim]:
		return fail("verify cannot be used with trim: trimmed blocks have no header")
	case j.VerifyDurable && (!j.VerifyOnly || j.VerifyState == ""):
		return fail("verify_durable needs verify_only and verify_state")
	case j.writes() && j.Random && j.noMap():
		return fail("verify cannot be used with norandommap, blockalign or an uneven random_distribution: two writes of one block could overlap")
	case j.writes() && j.NumJobs > 1 && j.OffsetIncr == (Size{}):
		return fail("verify with numjobs=%d: the clones would overwrite each other's blocks; give each its own range with offset_increment and size", j.NumJobs)
	}
	return nil
}
