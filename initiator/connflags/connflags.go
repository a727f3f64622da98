// Package connflags holds the command-line options that every subcommand of
// iser-initiator with a connection shares: who we are, secrets, time-outs,
// negotiation, and how the loss of a connection is survived.
package connflags

import (
	"encoding/hex"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"softiser/initiator"
	"softiser/initiator/nvmf"
	"softiser/internal/iscsi"
	"softiser/internal/sizeflag"
	"softiser/rdma"
)

// Environment variables that supply credentials when neither URL nor options
// do.
const (
	EnvUser             = "ISER_CHAP_USER"
	EnvSecret           = "ISER_CHAP_SECRET"
	EnvSecretFile       = "ISER_CHAP_SECRET_FILE"
	EnvTargetUser       = "ISER_CHAP_TARGET_USER"
	EnvTargetSecret     = "ISER_CHAP_TARGET_SECRET"
	EnvTargetSecretFile = "ISER_CHAP_TARGET_SECRET_FILE"
	EnvInitiatorName    = "ISER_INITIATOR_NAME"
)

// Options are the values of the shared options.
type Options struct {
	InitiatorName    string
	LocalAddress     string
	ISID             string
	User             string
	SecretFile       string
	TargetUser       string
	TargetSecretFile string
	Algorithms       string
	FallbackTCP      bool
	StreamLogin      bool
	CRC              string
	BusyPoll         string
	LargeFPDU        bool
	Congestion       string
	Zerocopy         string
	Sessions         int
	QueueDepth       int
	MaxTransfer      int64 // bytes
	InitialR2T       bool
	NoImmediate      bool
	FirstBurst       int64 // bytes
	MaxBurst         int64 // bytes
	MaxRecv          int64 // bytes
	LoginTimeout     time.Duration
	CommandTimeout   time.Duration
	NopInterval      time.Duration
	NopTimeout       time.Duration
	SilencePing      time.Duration
	SilenceProbe     time.Duration
	Replacement      time.Duration
	Verbose          bool
	Events           io.Writer // is told what happens to sessions, a line each; nil: stderr

	path pathOptions
	host hostOptions
}

// Register adds the options to fs and returns where their values will be.
func Register(fs *pflag.FlagSet) *Options {
	o := new(Options)
	fs.StringVar(&o.InitiatorName, "initiator-name", "", "our iSCSI name (default: $"+EnvInitiatorName+", "+initiator.NameFile+", or one derived from the machine)")
	fs.StringVar(&o.LocalAddress, "local-address", "", "connect from this address of this machine (default: as routing chooses); over RoCE its UDP port 4791 is taken")
	fs.StringVar(&o.ISID, "isid", "", "session identifier as 12 hex digits, for persistent reservations that outlive this run (default: random)")
	fs.StringVar(&o.User, "chap-user", "", "CHAP user name (default: $"+EnvUser+")")
	fs.StringVar(&o.SecretFile, "chap-secret-file", "", "file with the CHAP secret (default: $"+EnvSecret+" or $"+EnvSecretFile+")")
	fs.StringVar(&o.TargetUser, "chap-target-user", "", "mutual CHAP: the target's user name (default: $"+EnvTargetUser+")")
	fs.StringVar(&o.TargetSecretFile, "chap-target-secret-file", "", "mutual CHAP: file with the target's secret (default: $"+EnvTargetSecret+" or $"+EnvTargetSecretFile+")")
	fs.StringVar(&o.Algorithms, "chap-algs", "", "CHAP algorithms in order of preference: sha3-256, sha-256, sha1, md5 (default: all, in this order)")
	fs.BoolVar(&o.FallbackTCP, "fallback-tcp", false, "go on over plain TCP when the port does not speak iSER")
	fs.BoolVar(&o.StreamLogin, "stream-login", false, "iSER: log in over the TCP stream before RDMA mode (RFC 7145 §5.1) instead of as Linux does")
	fs.StringVar(&o.CRC, "crc", "required", "RDMA: MPA CRC required, offered or off")
	fs.StringVar(&o.BusyPoll, "busy-poll", "auto", "spin this long for the next PDU before sleeping; 0: never; auto: briefly, while commands are answered quickly")
	fs.BoolVar(&o.LargeFPDU, "large-fpdu", false, "RDMA: offer frames above the path's segment size, up to 64 KiB")
	fs.StringVar(&o.Zerocopy, "zerocopy", "auto", "RDMA: send large payloads with MSG_ZEROCOPY: auto, on or off")
	fs.StringVar(&o.Congestion, "congestion", "auto", "TCP congestion control: auto (reno within one host, else the host's default), host, or a name such as cubic")
	fs.IntVar(&o.Sessions, "nr-sessions", 1, "sessions to spread the LUN over")
	fs.IntVar(&o.QueueDepth, "queue-depth", 128, "commands outstanding per session")
	o.MaxTransfer, o.FirstBurst, o.MaxBurst, o.MaxRecv = 1<<20, 256<<10, 16383<<10, 256<<10
	fs.Var((*sizeflag.Value)(&o.MaxTransfer), "max-transfer", "longest single command; longer requests are split")
	fs.BoolVar(&o.InitialR2T, "initial-r2t", false, "offer InitialR2T=Yes: no unsolicited Data-Out")
	fs.BoolVar(&o.NoImmediate, "no-immediate-data", false, "offer ImmediateData=No")
	fs.Var((*sizeflag.Value)(&o.FirstBurst), "first-burst", "FirstBurstLength to offer")
	fs.Var((*sizeflag.Value)(&o.MaxBurst), "max-burst", "MaxBurstLength to offer")
	fs.Var((*sizeflag.Value)(&o.MaxRecv), "max-recv-data", "longest data segment that we take")
	fs.DurationVar(&o.LoginTimeout, "login-timeout", 30*time.Second, "time for connecting and logging in")
	fs.DurationVar(&o.CommandTimeout, "command-timeout", 60*time.Second, "abort a command after this time; -1s: never")
	fs.DurationVar(&o.NopInterval, "noop-interval", 5*time.Second, "ping after this time of silence; -1s: never")
	fs.DurationVar(&o.NopTimeout, "noop-timeout", 5*time.Second, "a ping that is not answered for this time ends the connection")
	fs.DurationVar(&o.SilencePing, "silence-ping", 500*time.Millisecond, "ping after this time without a byte while commands are outstanding")
	fs.DurationVar(&o.SilenceProbe, "silence-probe", time.Second, "if the silence lasts this long in spite of the ping, try a second connection; if only that one is answered, another node has taken over, and the session is established anew at once; -1s: never")
	fs.DurationVar(&o.Replacement, "replacement-timeout", 120*time.Second, "hold I/O this long while reconnecting; 0: fail at once, -1s: for ever")
	o.host.register(fs)
	o.path.register(fs)
	fs.BoolVarP(&o.Verbose, "verbose", "v", false, "report every event of the session on stderr, not only errors")
	return o
}

// Apply completes c with the options and the environment; what c says wins.
func (o *Options) Apply(c *initiator.Config) error {
	if err := o.check(); err != nil {
		return err
	}
	c.InitiatorName = first(c.InitiatorName, o.InitiatorName, os.Getenv(EnvInitiatorName))
	var err error
	if c.LocalAddress, err = o.localAddress(); err != nil {
		return err
	}
	if o.ISID != "" {
		b, err := hex.DecodeString(o.ISID)
		if err != nil || len(b) != 6 {
			return fmt.Errorf("--isid %q: want 12 hex digits, for example 80a1b2c30000", o.ISID)
		}
		c.ISID = [6]byte(b)
	}
	if !c.Auth.None {
		if err := o.applyAuth(&c.Auth); err != nil {
			return err
		}
	}
	o.host.keys.tls.apply(c)
	var r nvmf.RDMA
	if r, err = o.rdma(); err != nil {
		return err
	}
	c.CRC, c.Zerocopy, c.LargeFPDU = r.CRC, r.Zerocopy, r.LargeFPDU
	if c.BusyPoll, err = busyPoll(o.BusyPoll); err != nil {
		return err
	}
	c.FallbackTCP, c.StreamLogin = o.FallbackTCP, o.StreamLogin
	c.Congestion = o.Congestion
	c.Sessions, c.QueueDepth, c.MaxTransfer = o.Sessions, o.QueueDepth, int(o.MaxTransfer)
	c.InitialR2T, c.NoImmediateData = o.InitialR2T, o.NoImmediate
	c.FirstBurstLength, c.MaxBurstLength, c.MaxRecvDataLength = int(o.FirstBurst), int(o.MaxBurst), int(o.MaxRecv)
	c.LoginTimeout, c.CommandTimeout = o.LoginTimeout, o.CommandTimeout
	c.NopInterval, c.NopTimeout = o.NopInterval, o.NopTimeout
	c.SilencePing, c.SilenceProbe = o.silence()
	c.ReplacementTimeout, c.FailNow = o.Replacement, o.Replacement == 0
	if c.OnEvent == nil {
		verbose := o.Verbose
		c.OnEvent = func(e initiator.Event) {
			if verbose || e.Kind.Trouble() {
				o.tell(e.String())
			}
		}
	}
	return nil
}

// tell prints an event, in which there may be words of the target.
func (o *Options) tell(event string) {
	var w io.Writer = os.Stderr
	if o.Events != nil {
		w = o.Events
	}
	fmt.Fprintln(w, iscsi.PrintableLines(event))
}

// localAddress reads --local-address; the zero address where there is none.
func (o *Options) localAddress() (a netip.Addr, err error) {
	if o.LocalAddress == "" {
		return a, nil
	}
	if a, err = netip.ParseAddr(o.LocalAddress); err != nil || a.IsUnspecified() || a.IsMulticast() {
		return a, fmt.Errorf("--local-address %q: want an address of this machine, for example 10.0.0.7", o.LocalAddress)
	}
	return a.Unmap(), nil
}

// silence returns the times as a Config has them; the ping goes with a shorter probe.
func (o *Options) silence() (ping, probe time.Duration) {
	if !o.path.fs.Changed("silence-ping") {
		return 0, o.SilenceProbe
	}
	return o.SilencePing, o.SilenceProbe
}

func (o *Options) applyAuth(a *initiator.Auth) (err error) {
	a.User = first(a.User, o.User, os.Getenv(EnvUser))
	a.TargetUser = first(a.TargetUser, o.TargetUser, os.Getenv(EnvTargetUser))
	if a.Secret, err = secret(a.Secret, o.SecretFile, EnvSecret, EnvSecretFile); err != nil {
		return err
	}
	if a.TargetSecret, err = secret(a.TargetSecret, o.TargetSecretFile, EnvTargetSecret, EnvTargetSecretFile); err != nil {
		return err
	}
	if len(a.Algorithms) == 0 && o.Algorithms != "" {
		if a.Algorithms, err = initiator.ParseAlgorithms(o.Algorithms); err != nil {
			return fmt.Errorf("--chap-algs: %w", err)
		}
	}
	return nil
}

// maxSecret bounds a secret's file, in bytes.
const maxSecret = 4096

// secret returns the first that is set: s, the file, the variable, the file
// that a variable names.
func secret(s initiator.Secret, file, env, fileEnv string) (initiator.Secret, error) {
	if s != "" {
		return s, nil
	}
	if file == "" {
		if v := os.Getenv(env); v != "" {
			return initiator.Secret(v), nil
		}
		if file = os.Getenv(fileEnv); file == "" {
			return "", nil
		}
	}
	line, err := firstLine(file)
	if err != nil {
		return "", fmt.Errorf("CHAP secret: %w", err)
	}
	return initiator.Secret(line), nil
}

// firstLine is that of a file with a secret.
func firstLine(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxSecret+1))
	if err != nil {
		return "", err
	}
	if len(b) > maxSecret {
		return "", fmt.Errorf("%s is longer than %d bytes", file, maxSecret)
	}
	line, _, _ := strings.Cut(string(b), "\n")
	if line = strings.TrimRight(line, "\r"); line == "" {
		return "", fmt.Errorf("the first line of %s is empty", file)
	}
	return line, nil
}

func first(s ...string) string {
	for _, v := range s {
		if v != "" {
			return v
		}
	}
	return ""
}

// busyPoll reads --busy-poll as Config.BusyPoll has it.
func busyPoll(s string) (time.Duration, error) {
	if s == "auto" {
		return rdma.BusyPollAuto, nil
	}
	d, err := time.ParseDuration(s)
	switch {
	case err != nil || d < 0:
		return 0, fmt.Errorf("--busy-poll %q: want auto, 0 for never, or a time such as 50us", s)
	case d == 0:
		return rdma.BusyPollOff, nil
	}
	return d, nil
}
