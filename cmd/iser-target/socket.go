package main

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/spf13/cobra"

	"softiser/config"
	"softiser/target/admin"
)

// socketEnv names the admin socket: that of a target for those who ask it, and of serve the one that it makes.
const socketEnv = config.EnvPrefix + "_ADMIN_SOCKET"

// socketFlag adds --socket; open finds the socket that it, the environment or
// the usual places name.
type socketFlag struct{ path string }

func (s *socketFlag) add(cmd *cobra.Command) {
	cmd.PersistentFlags().StringVar(&s.path, "socket", "", "admin socket (default $SOFTISER_ADMIN_SOCKET, then /run/softiser/iser-target.sock)")
}

func (s *socketFlag) open() (*admin.Client, error) {
	if err := config.MistypedEnv("admin.socket"); err != nil && s.path == "" {
		return nil, exit(exitUsage, err)
	}
	p := s.path
	if p == "" {
		p = os.Getenv(socketEnv)
	}
	if p == "" {
		p = "/run/softiser/iser-target.sock"
	}
	return admin.NewClient(p), nil
}

// ask runs one exchange with the target.
func (s *socketFlag) ask(ctx context.Context, f func(context.Context, *admin.Client) error) error {
	return s.askFor(ctx, askPatience, f)
}

// askPatience is how long the target may take for an answer.
const askPatience = 30 * time.Second

// askFor is ask for an exchange that may take so long.
func (s *socketFlag) askFor(ctx context.Context, patience time.Duration, f func(context.Context, *admin.Client) error) error {
	return s.with(func(c *admin.Client) error {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		return f(ctx, c)
	})
}

// with runs exchanges with the target that take as long as they take.
func (s *socketFlag) with(f func(*admin.Client) error) error {
	c, err := s.open()
	if err != nil {
		return err
	}
	defer c.Close()
	err = f(c)
	if errors.Is(err, admin.ErrNoTarget) {
		return exit(exitNoTarget, err)
	}
	return err
}
