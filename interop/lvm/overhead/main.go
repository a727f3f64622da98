// Command overhead measures, inside one guest, what snapshots and thin volumes
// cost over a linear volume: device-mapper's and ours, in turns on two equal
// disks. interop's case lvm/overhead builds it and runs it:
//
//	overhead DISK-FOR-LVM2 DISK-FOR-US
//
// Both groups are made by the same commands: lin (linear), org with the classic
// snapshot snp, thin, and tsn with its thin snapshot tss. Every write is durable
// when it is counted: O_DIRECT and O_DSYNC on the one side, a write lease
// committed with FUA on the other. What is compared is the ratio to the same
// side's linear volume, so it matters less that the two reach the disk by
// different ways.
package main

import (
	"fmt"
	"os"
	"slices"
	"time"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: overhead DISK-FOR-LVM2 DISK-FOR-US")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "overhead:", err)
		os.Exit(1)
	}
}

func run(disk1, disk2 string) error {
	sides := []side{&kernel{disk: disk1}, &user{disk: disk2}}
	for _, s := range sides {
		defer s.close()
		if err := setup(s); err != nil {
			return err
		}
	}
	took := map[string][]time.Duration{} // side and workload → time of one operation, by round
	for round := range rounds {
		for _, w := range workloads {
			for i, s := range sides {
				d, err := w.measure(s, round)
				if err != nil {
					return fmt.Errorf("%s, round %d: %w", w.name, round, err)
				}
				k := fmt.Sprint(i, w.name)
				took[k] = append(took[k], d)
			}
		}
	}
	print(took)
	return nil
}

// setup makes the volumes, and the snapshots once their origins are full.
func setup(s side) error {
	steps := [][]string{
		{"lvcreate", "-Wn", "-L32m", "-n", "lin"}, {"lvcreate", "-Wn", "-L32m", "-n", "org"},
		{"lvcreate", "-Wn", "-T", "-L160m", "/pool"},
		{"lvcreate", "-V64m", "-n", "thin", "-T", "/pool"}, {"lvcreate", "-V64m", "-n", "tsn", "-T", "/pool"},
		{"fill"},
		{"lvcreate", "-s", "-L64m", "-n", "snp", "/org"}, {"lvcreate", "-s", "-kn", "-n", "tss", "/tsn"},
	}
	if err := s.lvm("vgcreate", s.group(), s.device()); err != nil {
		return err
	}
	for _, st := range steps {
		if st[0] == "fill" {
			if err := fill(s); err != nil {
				return err
			}
			continue
		}
		if last := len(st) - 1; st[last][0] == '/' {
			st[last] = s.group() + st[last]
		} else {
			st = append(st, s.group())
		}
		if err := s.lvm(st...); err != nil {
			return err
		}
	}
	return s.open("lin", "org", "snp", "thin", "tsn", "tss")
}

// fill writes what is to be overwritten, shared or read.
func fill(s side) error {
	if err := s.open("lin", "org", "tsn"); err != nil {
		return err
	}
	p := buffer(1 << 20)
	for v, n := range map[string]int64{"lin": 32 << 20, "org": 32 << 20, "tsn": 64 << 20} {
		for off := int64(0); off < n; off += int64(len(p)) {
			if err := s.write(v, p, off); err != nil {
				return err
			}
		}
	}
	return s.close()
}

// print writes the table: the median time of one operation and the median of
// its ratio to the linear volume in the same round.
func print(took map[string][]time.Duration) {
	fmt.Println("| one operation of 4 KiB | device-mapper | over its linear | ours | over our linear |")
	fmt.Println("|---|---:|---:|---:|---:|")
	for _, w := range workloads {
		fmt.Printf("| %s |", w.name)
		for i := range 2 {
			d, base := took[fmt.Sprint(i, w.name)], took[fmt.Sprint(i, w.base)]
			var ratios []float64
			for r := range d {
				ratios = append(ratios, float64(d[r])/float64(base[r]))
			}
			slices.Sort(ratios)
			s := slices.Sorted(slices.Values(d))
			fmt.Printf(" %d µs | %.2f |", s[len(s)/2].Microseconds(), ratios[len(ratios)/2])
		}
		fmt.Println()
	}
}
