package bench

import (
	"fmt"
	"time"
)

// Floor is the least that a job must do: below it, it ends with an error.
type Floor struct {
	Rate     [datas]int64 // bytes per second; zero: any
	RateIOPS [datas]int64
	Cycle    time.Duration // over which a rate is measured
}

// floorSettle is for how long a job may be slow at its beginning; fio's figure.
const floorSettle = 2 * time.Second

// floor watches one direction.
type floor struct {
	d          dir
	rate, iops int64
	at         time.Duration // of the last measurement; zero: there was none
	bytes, ios uint64        // done until then
}

func newFloors(j *Job) (list []floor) {
	for d := range datas {
		if j.Floor.Rate[d] > 0 || j.Floor.RateIOPS[d] > 0 {
			list = append(list, floor{d: dir(d), rate: j.Floor.Rate[d], iops: j.Floor.RateIOPS[d]})
		}
	}
	return list
}

// missed measures at now what was done since the last time, once in every cycle.
func (f *floor) missed(now, cycle time.Duration, t *DirStats) error {
	if t.IOs == 0 {
		return nil
	}
	if f.at > 0 {
		spent := now - f.at
		if spent < cycle || spent <= 0 {
			return nil
		}
		if got := int64(float64(t.Bytes-f.bytes) / spent.Seconds()); f.rate > 0 && got < f.rate {
			return fmt.Errorf("rate_min=%d bytes/s was not met: %ss moved %d bytes/s in the last %v", f.rate, f.d, got, spent.Round(time.Millisecond))
		}
		if got := int64(float64(t.IOs-f.ios) / spent.Seconds()); f.rate == 0 && got < f.iops {
			return fmt.Errorf("rate_iops_min=%d was not met: %d %ss per second in the last %v", f.iops, got, f.d, spent.Round(time.Millisecond))
		}
	}
	f.at, f.bytes, f.ios = now, t.Bytes, t.IOs
	return nil
}
