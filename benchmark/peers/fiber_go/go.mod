module flare/benchmark/peers/fiber_go

go 1.19
