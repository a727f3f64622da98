package registry

import "slices"

// plan compares what is served with the next configuration. What goes comes first: its files
// may be wanted by what comes.
func plan(p *planning, setLevel func(string) error) []step {
	targets, subsystems := targetPlan{p}, subsystemPlan{p}
	goes, comes := slices.Concat(targets.goes(), subsystems.goes()), slices.Concat(targets.comes(), subsystems.comes())
	var freed []place
	for _, s := range slices.Concat(goes, comes) {
		if s.Error == "" {
			freed = append(freed, s.frees...)
		}
	}
	return slices.Concat(goes, volumePlan{p, freed}.steps(), comes, settingsPlan{p, setLevel}.steps())
}
