package bench

import "fmt"

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
	case j.Verify == VerifyNone && (j.VerifyOnly || j.VerifyState != "" || j.VerifyDurable):
		return fail("verify_only, verify_state and verify_durable need verify=crc32c")
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
