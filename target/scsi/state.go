package scsi

// canSave reports whether the unit has somewhere to keep saved mode pages.
func (lu *LU) canSave() bool { return lu.dev.cfg.StateDir != "" }

func (lu *LU) savedModes() modeValues {
	lu.prMu.Lock()
	defer lu.prMu.Unlock()
	return lu.modes.saved
}

func (lu *LU) saveModes(v modeValues) error {
	lu.modes.saved = v
	return nil
}
