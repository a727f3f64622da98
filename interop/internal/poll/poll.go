// Package poll waits for what other programs bring about, where there is nothing to block on.
package poll

import (
	"context"
	"fmt"
	"time"
)

// Until asks again and again whether something has come about: until ok says so or has an
// error, which is returned, ctx ends, or patience is over, which is an error that says what
// never came about: "the load writes".
func Until(ctx context.Context, patience time.Duration, what string, ok func() (bool, error)) error {
	end := time.Now().Add(patience)
	for {
		if yes, err := ok(); yes || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(end) {
			return fmt.Errorf("it never came about that %s", what)
		}
	}
}
