package bench

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"softiser/internal/usage"
)

// option is one key of a job file and one flag of the command line.
type option struct {
	name    string // fio's name; the flag has - for _
	aliases []string
	value   string // what the value looks like, for help; empty: a switch
	help    string
	set     func(j *Job, v string) error
}

// options is the table of everything a job may say. Job files and the command
// line both go through it.
var options = []option{
	{"description", nil, "TEXT", "free text that goes into the report", func(j *Job, v string) error { j.Description = v; return nil }},
	{"name", nil, "NAME", "the job's name, when not its section's", setName},
	{"uri", []string{"filename"}, "URL", "volume of this job: iser://host[:port]/iqn/lun or iscsi://… (a URL among the arguments wins over a job file's)", setURI},
	{"ioengine", nil, "NAME", "accepted for fio's engines that read and write a file or device; our own initiator takes their place", setEngine},
	{"zonemode", nil, "none|strided", "strided: move zonesize bytes in a zone of zonerange bytes, then go on zoneskip bytes behind it", setZoneMode},
	{"zonesize", nil, "SIZE", "bytes to move in each zone", int64Var(func(j *Job) *int64 { return &j.Zones.size })},
	{"zonerange", nil, "SIZE", "length of a zone (default: zonesize)", int64Var(func(j *Job) *int64 { return &j.Zones.span })},
	{"zoneskip", nil, "SIZE", "gap between two zones", int64Var(func(j *Job) *int64 { return &j.Zones.skip })},
	{"random_distribution", nil, "NAME[:VALUE]", "random (evenly), zipf:THETA, pareto:POWER or zoned:DRAWS/SIZE:… in per cent", setDistribution},
	{"rate_process", nil, "linear|poisson", "how a limited rate is kept: steadily, or at random like independent users", func(j *Job, v string) error {
		if j.Poisson = v == "poisson"; !j.Poisson && v != "linear" {
			return errors.New("expected linear or poisson")
		}
		return nil
	}},
	{"rw", []string{"readwrite"}, "DIR[:N]", "read, write, randread, randwrite, rw, randrw, trim or randtrim; :N adds N bytes to each offset of a sequential load (-8k: backwards), or draws a new offset of a random one for every N-th operation only", setRW},
	{"rw_sequencer", nil, "KIND", "what the others of rw=rand…:N do: sequential (go on) or identical (stay)", setSequencer},
	{"bs", []string{"blocksize"}, "SIZE[,SIZE,SIZE]", "block size of reads, writes and trims", setBS},
	{"bsrange", []string{"blocksize_range"}, "MIN-MAX[,...]", "block sizes drawn from a range", setBSRange},
	{"bssplit", nil, "SIZE/PERCENT[:...]", "block sizes with their shares, for reads, writes and trims", setBSSplit},
	{"blockalign", []string{"ba"}, "SIZE[,SIZE,SIZE]", "boundary of random offsets (default: the smallest block size); turns the random map off", setAlign},
	{"iodepth", nil, "N", "requests kept in flight by each clone", intVar(func(j *Job) *int { return &j.IODepth })},
	{"numjobs", nil, "N", "clones of the job, each with its own queue", intVar(func(j *Job) *int { return &j.NumJobs })},
	{"size", []string{"filesize"}, "SIZE", "length of the range, bytes or % of the volume", sizeVar(func(j *Job) *Size { return &j.Size })},
	{"offset", nil, "SIZE", "start of the range, bytes or % of the volume", sizeVar(func(j *Job) *Size { return &j.Offset })},
	{"offset_increment", nil, "SIZE", "added to offset for each further clone", sizeVar(func(j *Job) *Size { return &j.OffsetIncr })},
	{"io_size", []string{"io_limit"}, "SIZE", "bytes to move, when not the range once", sizeVar(func(j *Job) *Size { return &j.IOSize })},
	{"number_ios", nil, "N", "stop after this many operations", int64Var(func(j *Job) *int64 { return &j.NumberIOs })},
	{"loops", nil, "N", "go over the range so many times", intVar(func(j *Job) *int { return &j.Loops })},
	{"runtime", []string{"timeout"}, "TIME", "stop after this time (seconds, or with unit)", timeVar(func(j *Job) *time.Duration { return &j.Runtime }, time.Second)},
	{"time_based", nil, "", "start over at the end of the range until runtime has passed", boolVar(func(j *Job) *bool { return &j.TimeBased })},
	{"ramp_time", nil, "TIME", "run this long before measuring", timeVar(func(j *Job) *time.Duration { return &j.RampTime }, time.Second)},
	{"startdelay", []string{"start_delay"}, "TIME", "wait before starting", timeVar(func(j *Job) *time.Duration { return &j.StartDelay }, time.Second)},
	{"thinktime", nil, "TIME", "pause of a slot between its operations (microseconds, or with unit)", timeVar(func(j *Job) *time.Duration { return &j.ThinkTime }, time.Microsecond)},
	{"rwmixread", nil, "PERCENT", "share of reads in a mixed load", intVar(func(j *Job) *int { return &j.RWMixRead })},
	{"rwmixwrite", nil, "PERCENT", "share of writes in a mixed load", func(j *Job, v string) error {
		n, err := strconv.Atoi(v)
		j.RWMixRead = 100 - n
		return plainNumber(err)
	}},
	{"rate", nil, "BYTES[,...]", "limit of bytes per second for reads, writes, trims", ratesVar(func(j *Job) *[datas]int64 { return &j.Rate })},
	{"rate_iops", nil, "N[,...]", "limit of operations per second for reads, writes, trims", ratesVar(func(j *Job) *[datas]int64 { return &j.RateIOPS })},
	{"rate_min", []string{"ratemin"}, "BYTES[,...]", "end the job with an error when it moves fewer bytes per second, measured over rate_cycle", ratesVar(func(j *Job) *[datas]int64 { return &j.Floor.Rate })},
	{"rate_iops_min", nil, "N[,...]", "the same for operations per second", ratesVar(func(j *Job) *[datas]int64 { return &j.Floor.RateIOPS })},
	{"rate_cycle", []string{"ratecycle"}, "TIME", "over which rate_min is measured (milliseconds, or with unit; default 1s)", timeVar(func(j *Job) *time.Duration { return &j.Floor.Cycle }, time.Millisecond)},
	{"max_latency", nil, "TIME", "end the job with an error when an operation has taken longer (microseconds, or with unit)", timeVar(func(j *Job) *time.Duration { return &j.MaxLatency }, time.Microsecond)},
	{"latency_target", nil, "TIME", "look for the greatest depth, up to iodepth, at which operations take no longer (microseconds, or with unit)", timeVar(func(j *Job) *time.Duration { return &j.LatencyTarget.Target }, time.Microsecond)},
	{"latency_window", nil, "TIME", "how long each depth is tried (microseconds, or with unit)", timeVar(func(j *Job) *time.Duration { return &j.LatencyTarget.Window }, time.Microsecond)},
	{"latency_percentile", nil, "PERCENT", "of the operations that must be within latency_target (default 100)", setTargetPercent},
	{"latency_run", nil, "0|1", "go on with the depth that was found, and adjust it", boolVar(func(j *Job) *bool { return &j.LatencyTarget.Forever })},
	{"steadystate", []string{"ss"}, "WHAT:LIMIT[%]", "end when iops or bw (greatest deviation from the mean), iops_slope or bw_slope (per second) is below the limit", setSteady},
	{"steadystate_duration", []string{"ss_dur"}, "TIME", "over this time (seconds, or with unit)", timeVar(func(j *Job) *time.Duration { return &j.Steady.Duration }, time.Second)},
	{"steadystate_ramp_time", []string{"ss_ramp"}, "TIME", "which begins after this (seconds, or with unit)", timeVar(func(j *Job) *time.Duration { return &j.Steady.Ramp }, time.Second)},
	{"flow", nil, "WEIGHT", "keep the operations of all jobs with this flow_id in the ratio of their weights", intVar(func(j *Job) *int { return &j.Flow })},
	{"flow_id", nil, "N", "which flow a job belongs to", intVar(func(j *Job) *int { return &j.FlowID })},
	{"flow_sleep", nil, "TIME", "look so much later whether the flow has caught up (microseconds, or with unit; default: be told)", timeVar(func(j *Job) *time.Duration { return &j.FlowSleep }, time.Microsecond)},
	{"seed", []string{"randseed"}, "N", "seed of offsets, sizes and payload", func(j *Job, v string) (err error) {
		j.Seed, err = strconv.ParseUint(v, 0, 64)
		return plainNumber(err)
	}},
	{"randrepeat", nil, "0|1", "the same sequence in every run (default 1)", setRandRepeat},
	{"norandommap", nil, "", "random blocks without keeping each to once per pass", boolVar(func(j *Job) *bool { return &j.NoRandomMap })},
	{"zero_buffers", nil, "", "write zeroes (default: random bytes)", boolVar(func(j *Job) *bool { return &j.Payload.zero })},
	{"refill_buffers", nil, "", "draw the random bytes anew for every write", boolVar(func(j *Job) *bool { return &j.Payload.refill })},
	{"scramble_buffers", nil, "0|1", "make a little of every 512 bytes unique, so that nothing can be stored once for all (default 1)", setScramble},
	{"buffer_pattern", nil, "PATTERN", "write this over and over: \"text\", 0x… (first byte first), a decimal number, 'file', or several", setPattern},
	{"buffer_compress_percentage", nil, "PERCENT", "how much of each buffer_compress_chunk is no random bytes but the pattern, or zeroes", intVar(func(j *Job) *int { return &j.Payload.compress })},
	{"buffer_compress_chunk", nil, "SIZE", "bytes of one compressible piece (default 512)", func(j *Job, v string) error {
		n, err := parseBytes(v, j.kbBase)
		j.Payload.chunk = int(min(n, maxBlock))
		return err
	}},
	{"dedupe_percentage", nil, "PERCENT", "share of writes that carry what another one carries, too", intVar(func(j *Job) *int { return &j.Payload.dedupe })},
	{"dedupe_mode", nil, "MODE", "what a duplicate repeats: the write before it (repeat), or one of a working_set", setDedupeMode},
	{"dedupe_working_set_percentage", nil, "PERCENT", "size of the working set, as a share of size (default 5)", intVar(func(j *Job) *int { return &j.Payload.workingSet })},
	{"dedupe_global", nil, "0|1", "one working set for the jobs together", boolVar(func(j *Job) *bool { return &j.Payload.dedupeGlobal })},
	{"fsync", []string{"fdatasync"}, "N", "flush (SYNCHRONIZE CACHE) after every N writes", intVar(func(j *Job) *int { return &j.Fsync })},
	{"end_fsync", nil, "", "flush when the job has ended", boolVar(func(j *Job) *bool { return &j.EndFsync })},
	{"fua", []string{"sync", "writefua"}, "", "durable writes (FUA)", setSync},
	{"verify", nil, "crc32c|none", "write a checksummed header into every block and check it", setVerify},
	{"do_verify", nil, "0|1", "verify after writing (default 1)", boolVar(func(j *Job) *bool { return &j.DoVerify })},
	{"verify_only", nil, "", "write nothing, check what an earlier run has written", boolVar(func(j *Job) *bool { return &j.VerifyOnly })},
	{"verify_fatal", nil, "", "stop at the first mismatch", boolVar(func(j *Job) *bool { return &j.VerifyFatal })},
	{"verify_state", nil, "FILE", "keep the ledger of written blocks in FILE, for verify_only after a crash", func(j *Job, v string) error { j.VerifyState = v; return nil }},
	{"verify_durable", nil, "", "verify_only: hold the volume to what was flushed (after a power loss)", boolVar(func(j *Job) *bool { return &j.VerifyDurable })},
	{"continue_on_error", nil, "none|all", "go on after a failed operation", setContinue},
	{"sessions", nil, "N", "connections, shared by the clones (default: one per clone)", intVar(func(j *Job) *int { return &j.Sessions })},
	{"busy_poll", nil, "TIME", "let the sessions spin this long before they sleep (microseconds, or with unit)", timeVar(func(j *Job) *time.Duration { return &j.BusyPoll }, time.Microsecond)},
	{"group_reporting", nil, "", "one report for the whole group", boolVar(func(j *Job) *bool { return &j.GroupReporting })},
	{"new_group", nil, "", "start a new reporting group", boolVar(func(j *Job) *bool { return &j.NewGroup })},
	{"stonewall", []string{"wait_for_previous"}, "", "wait for the jobs before this one", boolVar(func(j *Job) *bool { return &j.Stonewall })},
	{"wait_for", nil, "JOB", "begin when all clones of that job, which stands earlier, have ended", func(j *Job, v string) error { j.WaitFor = v; return nil }},
	{"exitall", nil, "", "when a clone of this job has ended, end the others of its group", boolVar(func(j *Job) *bool { return &j.ExitAll })},
	{"exit_what", nil, "WHAT", "what exitall ends: group, stonewall (all that run) or all (also those that wait)", setExitWhat},
	{"write_bw_log", nil, "[PREFIX]", "write each operation's bandwidth to PREFIX_bw.CLONE.log (default: the job's name)", logVar(func(j *Job) *logName { return &j.Logs.BW })},
	{"write_iops_log", nil, "[PREFIX]", "the same for operations per second, to PREFIX_iops.CLONE.log", logVar(func(j *Job) *logName { return &j.Logs.IOPS })},
	{"write_lat_log", nil, "[PREFIX]", "the same for latencies in nanoseconds, to PREFIX_slat, _clat and _lat.CLONE.log", logVar(func(j *Job) *logName { return &j.Logs.Lat })},
	{"log_avg_msec", nil, "TIME", "one line in these logs for each such time (milliseconds, or with unit), with the average", timeVar(func(j *Job) *time.Duration { return &j.Logs.Average }, time.Millisecond)},
	{"log_max_value", nil, "0|1", "with the greatest latency instead of the average", boolVar(func(j *Job) *bool { return &j.Logs.Max })},
	{"log_offset", nil, "0|1", "a column with the offset", boolVar(func(j *Job) *bool { return &j.Logs.Offset })},
	{"log_prio", nil, "0|1", "the column of the priority, which commands do not have, in hexadecimal", boolVar(func(j *Job) *bool { return &j.Logs.Priority })},
	{"log_unix_epoch", nil, "0|1", "times since 1970 instead of since the clone's start", boolVar(func(j *Job) *bool { return &j.Logs.Unix })},
	{"per_job_logs", nil, "0|1", "0: the clones append to one file PREFIX_bw.log", func(j *Job, v string) error {
		each, err := parseBool(v)
		j.Logs.Shared = !each
		return err
	}},
	{"clat_percentiles", nil, "0|1", "report percentiles of the completion latency (default 1)", boolVar(func(j *Job) *bool { return &j.ClatPercentile })},
	{"lat_percentiles", nil, "0|1", "report percentiles of the total latency", boolVar(func(j *Job) *bool { return &j.LatPercentile })},
	{"slat_percentiles", nil, "0|1", "report percentiles of the submission latency", boolVar(func(j *Job) *bool { return &j.SlatPercentile })},
	{"percentile_list", nil, "P[:P...]", "percentiles to report", setPercentiles},
	{"kb_base", nil, "1024|1000", "1000: k, m, g in this job's later sizes are powers of ten", func(j *Job, v string) error {
		if v != "1024" && v != "1000" {
			return errors.New("must be 1024 or 1000")
		}
		j.kbBase, _ = strconv.Atoi(v)
		return nil
	}},
}

// optionByName finds a key, its aliases included; - and _ are the same.
func optionByName(key string) *option {
	key = strings.ReplaceAll(strings.ToLower(key), "-", "_")
	for i := range options {
		if o := &options[i]; o.name == key || slices.Contains(o.aliases, key) {
			return o
		}
	}
	return nil
}

// nearestOption names the option that a mistyped one may have been meant to be.
func nearestOption(key string) string {
	var names []string
	for i := range options {
		names = append(append(names, options[i].name), options[i].aliases...)
	}
	for _, m := range []map[string]string{ignored, refused} {
		names = slices.AppendSeq(names, maps.Keys(m))
	}
	slices.Sort(names)
	if near := usage.Nearest(key, names); near != "" {
		return "did you mean " + near + "?"
	}
	return "see iser-initiator bench --help for those that exist"
}

// ParseJobs turns sections into jobs. An unknown key is an error that names its
// place; a key of fio's that has no meaning here becomes a line of notes.
func ParseJobs(sections []Section) (jobs []*Job, notes []string, err error) {
	global := newJob()
	for _, s := range sections {
		if s.Name == globalSection {
			n, err := global.apply(withoutName(s.Opts))
			if err != nil {
				return nil, nil, err
			}
			notes = append(notes, n...)
			continue
		}
		j := global.copy()
		j.Name, j.Pos = s.Name, s.Pos
		n, err := j.apply(s.Opts)
		if err != nil {
			return nil, nil, err
		}
		notes = append(notes, n...)
		if j.TimeBased && j.Runtime == 0 {
			j.TimeBased = false
			notes = append(notes, fmt.Sprintf("%s: job %s: time_based has no effect without a runtime, as in fio", j.Pos, j.Name))
		}
		if err := j.check(); err != nil {
			return nil, nil, err
		}
		jobs = append(jobs, j)
	}
	for i, j := range jobs {
		if err := j.checkWait(jobs[:i]); err != nil {
			return nil, nil, err
		}
		if i > 0 {
			j.group = jobs[i-1].group
			if j.Stonewall || j.NewGroup {
				j.group++
			}
		}
	}
	if err := checkSteadyGroups(jobs); err != nil {
		return nil, nil, err
	}
	if len(jobs) == 0 {
		return nil, nil, errors.New("no job: only a global section was given (add a [name] section)")
	}
	return jobs, notes, nil
}

// withoutName drops name=: in a global section fio only writes it into its
// report, and each job keeps its section's name.
func withoutName(opts []KV) []KV {
	return slices.DeleteFunc(slices.Clone(opts), func(kv KV) bool { return kv.Key == "name" })
}

// apply sets options in order.
func (j *Job) apply(opts []KV) (notes []string, err error) {
	for _, kv := range opts {
		key := strings.ReplaceAll(strings.ToLower(kv.Key), "-", "_")
		o := optionByName(key)
		if o == nil {
			if why, known := refused[key]; known {
				return nil, fmt.Errorf("%s: %s would change the load, and is not offered: %s", kv.Pos, kv.Key, why)
			}
			why, ok := ignored[key]
			if !ok {
				return nil, fmt.Errorf("%s: unknown option %q (%s)", kv.Pos, kv.Key, nearestOption(key))
			}
			notes = append(notes, fmt.Sprintf("%s: %s is ignored: %s", kv.Pos, kv.Key, why))
			continue
		}
		v := kv.Value
		if kv.Bare && strings.HasPrefix(o.value, "[") {
			v = ofJob
		} else if kv.Bare {
			if o.value != "" && o.value != "0|1" {
				return nil, fmt.Errorf("%s: %s needs a value (%s=%s)", kv.Pos, kv.Key, o.name, o.value)
			}
			v = "1"
		}
		if err := o.set(j, v); err != nil {
			return nil, fmt.Errorf("%s: %s=%s: %w", kv.Pos, kv.Key, kv.Value, err)
		}
		if o.name == "ioengine" {
			notes = append(notes, fmt.Sprintf("%s: %s is ignored: the volume is always reached by our own initiator", kv.Pos, kv.Key))
		}
		if o.name == "name" {
			continue // every report shows it anyway
		}
		if _, seen := j.explicit[o.name]; !seen {
			j.order = append(j.order, o.name)
		}
		j.explicit[o.name] = strings.TrimPrefix(v, ofJob)
	}
	return notes, nil
}
