module flare/http_go

go 1.19
