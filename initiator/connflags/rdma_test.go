package connflags

import (
	"testing"
	"time"

	"github.com/spf13/pflag"

	"softiser/initiator"
	"softiser/initiator/nvmf"
	"softiser/rdma"
)

// The options of RDMA mean the same to a session and to a host.
func TestRDMA(t *testing.T) {
	parse := func(args ...string) *Options {
		t.Helper()
		fs := pflag.NewFlagSet("", pflag.ContinueOnError)
		o := Register(fs)
		if err := fs.Parse(args); err != nil {
			t.Fatal(err)
		}
		return o
	}
	o := parse("--crc=offered", "--zerocopy=off", "--busy-poll=70us", "--large-fpdu")
	var host nvmf.Config
	if err := o.NVMe(&host); err != nil {
		t.Fatal(err)
	}
	if want := (nvmf.RDMA{CRC: rdma.CRCOffered, Zerocopy: rdma.ZerocopyOff, LargeFPDU: true}); host.RDMA != want {
		t.Errorf("%+v, want %+v", host.RDMA, want)
	}
	var lun initiator.Config
	if err := o.Apply(&lun); err != nil {
		t.Fatal(err)
	}
	if got := (nvmf.RDMA{CRC: lun.CRC, Zerocopy: lun.Zerocopy, LargeFPDU: lun.LargeFPDU}); got != host.RDMA {
		t.Errorf("%+v, want %+v", got, host.RDMA)
	}
	if want := 70 * time.Microsecond; host.BusyPoll != want || lun.BusyPoll != want {
		t.Errorf("a host spins for %v, a session for %v, want %v", host.BusyPoll, lun.BusyPoll, want)
	}
	tune := Tuning{BusyPoll: time.Millisecond}
	for _, w := range []way{{host: &host}, {lun: &lun}} {
		tune.apply(w)
	}
	if host.BusyPoll != time.Millisecond || lun.BusyPoll != time.Millisecond {
		t.Errorf("a tuned host spins for %v, a session for %v", host.BusyPoll, lun.BusyPoll)
	}
	for _, bad := range []string{"--crc=x", "--zerocopy=x", "--busy-poll=x"} {
		if parse(bad).NVMe(&host) == nil || parse(bad).Apply(&lun) == nil {
			t.Errorf("%s was taken", bad)
		}
	}
}
