package initiator

import (
	"fmt"

	"softiser/internal/iscsi"
)

// auth translates the credentials; nil means that none are used.
func auth(a *Auth) *iscsi.InitiatorAuth {
	if a.None || a.Secret == "" {
		return nil
	}
	ia := &iscsi.InitiatorAuth{
		User: a.User, Secret: iscsi.Secret(a.Secret),
		MutualUser: a.TargetUser, MutualSecret: iscsi.Secret(a.TargetSecret),
	}
	for _, n := range a.Algorithms {
		if alg, err := iscsi.ParseCHAPAlgorithm(n); err == nil {
			ia.Algorithms = append(ia.Algorithms, alg)
		}
	}
	return ia
}

// validate checks that the credentials make sense together.
func (a *Auth) validate() error {
	if a.None {
		return nil
	}
	for _, n := range a.Algorithms {
		if _, err := iscsi.ParseCHAPAlgorithm(n); err != nil {
			return err
		}
	}
	switch {
	case a.Secret != "" && a.User == "":
		return fmt.Errorf("a CHAP secret is given but no user name that goes with it")
	case a.User != "" && a.Secret == "":
		return fmt.Errorf("CHAP user %q is given but no secret; put it in the URL, a file or the environment", a.User)
	case a.TargetSecret != "" && a.Secret == "":
		return fmt.Errorf("mutual CHAP needs our own user and secret as well")
	case a.TargetSecret != "" && a.TargetSecret == a.Secret:
		return fmt.Errorf("the two directions of mutual CHAP must not use the same secret (RFC 7143 §12.1.3)")
	case a.TargetUser != "" && a.TargetSecret == "":
		return fmt.Errorf("target user %q is given but no target secret", a.TargetUser)
	}
	return nil
}
