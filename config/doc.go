// Package config is the file model of iser-target: what a configuration may
// say, what it means when it says nothing, and why it is refused.
//
// A configuration is YAML. Loading is strict: an unknown key, a duplicate IQN,
// LUN, volume or WWID, a size without a spelled-out unit, a secret that is missing or
// that every user of the machine can read: each
// is an error that names the file, the line, the key and the expected form, and
// all of them are reported at once. What can only be known at run time (a
// backing file that is gone) is no error of the file; the target starts without
// that volume and says so.
//
// Everything that has a name is a list element with a name field, never a map
// keyed by that name: an IQN contains dots, and a map keyed by it would be
// split and lower-cased on the way through viper.
//
// The scalars of the sections iscsi, transport, limits, admin and logging can
// be overridden from the environment: SOFTISER_TRANSPORT_CRC=off overrides
// transport.crc. Lists cannot. A variable that begins so and overrides nothing is an
// error like a key that is not known.
//
// Nothing outside this package sees viper.
package config
