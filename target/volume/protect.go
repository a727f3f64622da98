package volume

// Protected is write protection that lasts until it is lifted, across restarts, beside
// WriteProtected, which is SCSI's software write protection and goes with its mode
// parameters. Each front end lifts what it has set; both keep every wire from writing.

// Protections are the gates that say that nobody may write.
const Protections = ReadOnly | WriteProtected | Protected

// MayProtect reports whether the volume can be protected: it must remember that across a
// restart, or forget its data by then.
func (v *Volume) MayProtect() bool { return v.Keeps() || v.Forgetful() }

// Protect sets or lifts the protection, after it has been saved. The caller is a command
// that holds every block (All), so that no write is under way when it says that there is
// none. An error says that it could not be saved; nothing has changed then.
func (v *Volume) Protect(on bool) error {
	if v.Gates()&Protected != 0 == on {
		return nil
	}
	if v.Keeps() {
		v.state.mu.Lock()
		next := v.state.kept
		next.Protected = on
		err := v.state.save(next)
		v.state.mu.Unlock()
		if err != nil {
			return err
		}
	}
	v.SetGate(Protected, on)
	v.notify(Event{Kind: ProtectionChanged})
	return nil
}

// MayMark reports whether blocks can be marked: every place that the content goes to must
// know of it.
func (v *Volume) MayMark() bool {
	return v.Keeps() && !v.Moves() && v.dev != nil && v.Geo().Info.Backend != "lvm"
}
