package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"softiser/initiator"
	"softiser/initiator/blockio"
	"softiser/initiator/connflags"
	"softiser/internal/iscsi"
)

const reserveLong = `Initiators that share a volume register with a key each, and may then reserve it:
SCSI's persistent reservations, and NVMe's reservations. On a volume that a target
serves over both they are the same, and each shows the registrants of the other.

A registration belongs to the initiator: over iSCSI and iSER to its name and session
identifier, so that --isid is wanted, the same each time (and --initiator-name, where the
name is not that of the machine); over NVMe to the host identifier (--hostid). It outlives
this command.

A key is a number of 64 bits, decimal or with 0x. TYPE is one of
  write-exclusive                       the holder alone writes, everybody reads
  exclusive-access                      the holder alone reads and writes
  write-exclusive-registrants-only      the same for all who are registered;
  exclusive-access-registrants-only       one of them holds it
  write-exclusive-all-registrants       the same, and all of them hold it
  exclusive-access-all-registrants

A reservation or a key of somebody else that is in the way is "reservation conflict", exit
code 6.`

// reserveCommand builds the command for persistent reservations.
func reserveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "reserve",
		Short: "Show and change the persistent reservations of a volume",
		Long:  reserveLong,
		Example: `  iser-initiator reserve report   iser://127.0.0.1/iqn.2026-11.softiser:demo/0
  iser-initiator reserve register iser://127.0.0.1/iqn.2026-11.softiser:demo/0 --isid 80a1b2c30000 --new-key 0xabc
  iser-initiator reserve acquire  iser://127.0.0.1/iqn.2026-11.softiser:demo/0 --isid 80a1b2c30000 --key 0xabc --type write-exclusive
  iser-initiator reserve register nvme+tcp://127.0.0.1:3260/nqn.2026-11.softiser:demo/1 --new-key 0xdef
  iser-initiator reserve preempt  nvme+tcp://127.0.0.1:3260/nqn.2026-11.softiser:demo/1 --key 0xdef --victim 0xabc --type exclusive-access --abort`,
	}
	cmd.AddCommand(reportCommand())
	for i := range reserveActions {
		cmd.AddCommand(reserveActions[i].command())
	}
	return cmd
}

// reserveFlags are the values of the options of the actions.
type reserveFlags struct {
	key, newKey, victim    keyFlag
	kind                   typeFlag
	ignore, persist, abort bool
}

// keyFlag is a key of 64 bits.
type keyFlag uint64

func (k *keyFlag) String() string { return fmt.Sprintf("%#x", uint64(*k)) }
func (k *keyFlag) Type() string   { return "KEY" }

func (k *keyFlag) Set(s string) error {
	base, digits := 10, s // not 8 for one that begins with 0
	if hex, ok := strings.CutPrefix(strings.ToLower(s), "0x"); ok {
		base, digits = 16, hex
	}
	n, err := strconv.ParseUint(digits, base, 64)
	if err != nil {
		return fmt.Errorf("a key is a number of up to 64 bits, such as 0x1234: %w", errors.Unwrap(err))
	}
	*k = keyFlag(n)
	return nil
}

// typeFlag is a type of reservation.
type typeFlag struct{ blockio.ReservationType }

func (t *typeFlag) Type() string { return "TYPE" }

func (t *typeFlag) Set(s string) error {
	if err := t.UnmarshalText([]byte(s)); err != nil {
		return err
	}
	if t.ReservationType == blockio.NoReservation {
		return errors.New("release gives a reservation up; acquire and preempt want one of " + strings.Join(blockio.ReservationTypes(), ", "))
	}
	return nil
}

// reserveAction is one change of reservations.
type reserveAction struct {
	name, short string
	needs       []string // options that must be given
	may         []string // options that may
	do          func(context.Context, blockio.Reserver, *reserveFlags) error
}

var reserveActions = [...]reserveAction{
	{"register", "Register with a key, or change it", []string{"new-key"}, []string{"key", "ignore-key", "persist"},
		func(ctx context.Context, v blockio.Reserver, f *reserveFlags) error {
			if f.newKey == 0 {
				return usage("--new-key 0 would end the registration, which unregister is for")
			}
			return v.Register(ctx, blockio.Registration{Key: uint64(f.key), NewKey: uint64(f.newKey), Ignore: f.ignore, Persist: f.persist})
		}},
	{"unregister", "End our registration, and with it the reservation that we hold alone", []string{"key"}, []string{"persist"},
		func(ctx context.Context, v blockio.Reserver, f *reserveFlags) error {
			return v.Register(ctx, blockio.Registration{Key: uint64(f.key), Persist: f.persist})
		}},
	{"acquire", "Reserve the volume", []string{"key", "type"}, nil,
		func(ctx context.Context, v blockio.Reserver, f *reserveFlags) error {
			return v.Reserve(ctx, uint64(f.key), f.kind.ReservationType)
		}},
	{"release", "Release the reservation that we hold", []string{"key", "type"}, nil,
		func(ctx context.Context, v blockio.Reserver, f *reserveFlags) error {
			return v.Unreserve(ctx, uint64(f.key), f.kind.ReservationType)
		}},
	{"preempt", "End the registrations with another key, and take over the reservation of their holder", []string{"key", "victim", "type"}, []string{"abort"},
		func(ctx context.Context, v blockio.Reserver, f *reserveFlags) error {
			return v.Preempt(ctx, blockio.Preemption{Key: uint64(f.key), Victim: uint64(f.victim), Type: f.kind.ReservationType, Abort: f.abort})
		}},
	{"clear", "End the reservation and all registrations, those of others too", []string{"key"}, nil,
		func(ctx context.Context, v blockio.Reserver, f *reserveFlags) error {
			return v.ClearReservations(ctx, uint64(f.key))
		}},
}

// command builds the command of an action.
func (a *reserveAction) command() *cobra.Command {
	var f reserveFlags
	cmd := &cobra.Command{Use: a.name + " URL", Short: a.short, Args: cobra.ExactArgs(1), Example: "  iser-initiator reserve " + a.example()}
	opts := connflags.Register(cmd.Flags())
	for _, name := range append(a.needs, a.may...) {
		f.register(cmd, name)
	}
	for _, name := range a.needs {
		if err := cmd.MarkFlagRequired(name); err != nil {
			panic(err) // the table names an option that register does not know
		}
		cmd.Flags().Lookup(name).DefValue = "" // the help shows no default of what has to be given
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return withReserver(cmd.Context(), opts, args[0], true, func(v blockio.Reserver) error {
			if fs := cmd.Flags(); fs.Lookup("persist") != nil && !fs.Changed("persist") {
				now, err := v.Reservations(cmd.Context())
				if err != nil {
					return err
				}
				f.persist = now.Persist // each registration says it for all
			}
			return a.do(cmd.Context(), v, &f)
		})
	}
	return cmd
}

// example is how the action is called.
func (a *reserveAction) example() string {
	s := a.name + " iser://127.0.0.1/iqn.2026-11.softiser:demo/0 --isid 80a1b2c30000"
	for _, name := range a.needs {
		s += " --" + name + " " + map[string]string{"key": "0xabc", "new-key": "0xabc", "victim": "0xdef", "type": "write-exclusive"}[name]
	}
	return s
}

// register adds an option.
func (f *reserveFlags) register(cmd *cobra.Command, name string) {
	fs := cmd.Flags()
	switch name {
	case "key":
		fs.Var(&f.key, name, "the key that we are registered with")
	case "new-key":
		fs.Var(&f.newKey, name, "the key to register with")
	case "victim":
		fs.Var(&f.victim, name, "the key of those whose registrations end")
	case "type":
		fs.Var(&f.kind, name, "type of the reservation: "+strings.Join(blockio.ReservationTypes(), ", "))
	case "ignore-key":
		fs.BoolVar(&f.ignore, name, false, "whatever key we are registered with, or none")
	case "persist":
		fs.BoolVar(&f.persist, name, false, "registrations and reservation outlive a loss of power of the target (APTPL, CPTPL); default: as it is")
	case "abort":
		fs.BoolVar(&f.abort, name, false, "end what the others have under way as well")
	}
}

// withReserver opens a volume for f. changes says that f registers or reserves.
func withReserver(ctx context.Context, opts *connflags.Options, url string, changes bool, f func(blockio.Reserver) error) error {
	v, err := opts.Open(ctx, url, connflags.Tuning{})
	if err != nil {
		return err
	}
	defer v.Close()
	r, ok := v.(blockio.Reserver)
	if !ok {
		return usage("%s: reservations are made through one path, as over iSCSI each registers by itself: name one", connflags.Names(url))
	}
	if l, scsi := v.(*initiator.LUN); scsi && changes {
		switch {
		case opts.ISID == "":
			return usage("--isid is wanted: over iSCSI and iSER a registration belongs to it, and one made up for this run could never be used or ended again; for example --isid 80a1b2c30000, on no other machine of this initiator name")
		case len(l.Sessions()) > 1:
			return usage("--nr-sessions %d: each session would have to register by itself; name one", len(l.Sessions()))
		}
	}
	err = f(r)
	if errors.Is(err, blockio.ErrReservation) {
		return &codedError{exitConflict, fmt.Errorf("%w; or we are not registered with this key: reserve report shows who is", err)}
	}
	return err
}

// reservations is what report prints as JSON.
type reservations struct {
	URL         string                  `json:"url"`
	Generation  uint32                  `json:"generation"`
	Type        blockio.ReservationType `json:"type"`
	Persist     bool                    `json:"persist_through_power_loss"`
	Registrants []registrant            `json:"registrants"`
}

type registrant struct {
	Key    string `json:"key"`
	Holder bool   `json:"holder"`
	Name   string `json:"name,omitempty"`
	Port   uint16 `json:"relative_target_port,omitempty"`
}

// reportCommand shows registrations and reservation.
func reportCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "report URL", Short: "Show who is registered, and who holds the reservation", Args: cobra.ExactArgs(1),
		Example: "  iser-initiator reserve report nvme+tcp://127.0.0.1:3260/nqn.2026-11.softiser:demo/1 --json",
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	opts := connflags.Register(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return withReserver(cmd.Context(), opts, args[0], false, func(v blockio.Reserver) error {
			now, err := v.Reservations(cmd.Context())
			if err != nil {
				return err
			}
			r := reservations{URL: connflags.Names(args[0]), Generation: now.Generation, Type: now.Type, Persist: now.Persist, Registrants: []registrant{}}
			for _, x := range now.Registrants {
				r.Registrants = append(r.Registrants, registrant{fmt.Sprintf("0x%016x", x.Key), x.Holder, x.Name, x.Port})
			}
			if !asJSON {
				return r.print(cmd.OutOrStdout())
			}
			e := json.NewEncoder(cmd.OutOrStdout())
			e.SetIndent("", "  ")
			return e.Encode(r)
		})
	}
	return cmd
}

// print writes the report for people.
func (r *reservations) print(w io.Writer) error {
	persist := "ends with a loss of power"
	if r.Persist {
		persist = "outlives a loss of power"
	}
	fmt.Fprintf(w, "reservation: %v, generation %d, %s\n", r.Type, r.Generation, persist)
	if len(r.Registrants) == 0 {
		_, err := fmt.Fprintln(w, "nobody is registered")
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "KEY\tHOLDER\tREGISTRANT\tTARGET PORT")
	for _, x := range r.Registrants {
		port := "-"
		if x.Port != 0 {
			port = strconv.Itoa(int(x.Port))
		}
		name := x.Name
		if name == "" {
			name = "-"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", x.Key, yesNo(x.Holder), iscsi.Printable(name), port)
	}
	return t.Flush()
}
