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

// replayed reports whether the job goes by what its options say that an earlier run has written.
func (j *Job) replayed() bool { return j.VerifyOnly && j.VerifyState == "" }

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
