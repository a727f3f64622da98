package registry

import "slices"

// plan compares what is served with the next configuration. What goes comes first: its files
// may be wanted by what comes.
func plan(p *planning, setLevel func(string) error) []step {
	targets, subsystems := targetPlan{p}, subsystemPlan{p}
	return slices.Concat(
		targets.goes(), subsystems.goes(), volumePlan{p}.steps(),
		targets.comes(), subsystems.comes(), settingsPlan{p, setLevel}.steps(),
	)
}
